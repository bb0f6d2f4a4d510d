"""The report of an inspection: one HTML file that needs nothing else, and beside it every number and every figure."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _page
from .._files import atomic_write, atomic_folder
from ..errors import CrateError
from .panel import Panel

if TYPE_CHECKING:
    import pandas as pd

    Facts = Mapping[str, Mapping[str, Any] | str]

ROWS = 200
"""Rows of a table that the page shows; its file has them all."""

STYLE = """
sup, sub { line-height: 0; } nav ol { columns: 20rem; padding-left: 1.5rem; } nav li { break-inside: avoid; }
section { border-top: 1px solid var(--line); margin-top: 2rem; } section h2 { margin-top: 1.2rem; }
section p { max-width: 46rem; margin: .5rem 0; } summary { cursor: pointer; }
.wide { max-height: 28rem; } .numbers table { width: auto; } .numbers td, .numbers th { white-space: nowrap; }
.numbers td.number, .numbers th.number { text-align: right; font-variant-numeric: tabular-nums; }
.numbers thead th { position: sticky; top: 0; background: var(--page); }
.facts table { table-layout: fixed; } .facts th { width: 7rem; font-weight: 600; }
.facts td { overflow-wrap: anywhere; }
pre { border: 1px solid var(--line); border-radius: .3rem; padding: .6rem; max-height: 28rem; margin: .5rem 0; }
"""


def write_report(
    folder: Path,
    panels: Sequence[Panel],
    facts: Facts,
    notes: Sequence[str],
    title: str,
    progress: Callable[[], None] | None = None,
) -> Path:
    """Write report.html, report.json, `tables/` (CSV) and `figures/` (PNG and SVG) to `folder`; gives the page's path.

    `facts` are sections of the page by name, each a mapping or a text; `notes` stand at its top. Each file is there
    whole or not at all, and the page comes last, once all it names is there. Those of a report that lay there go.
    `progress` hears of each panel that is drawn.
    """
    twice = [name for name, count in Counter(panel.name for panel in panels).items() if count > 1]
    if twice:
        raise CrateError(f"two panels of the report are called {twice[0]!r}; their files would be one")
    parts = (folder / "figures", folder / "tables")
    if not (folder / "report.json").exists() and any(part.exists() for part in parts):
        raise CrateError(f"{folder}: has figures or tables that are no report's; give another --output")
    with atomic_folder(parts[0]) as figures, atomic_folder(parts[1]) as tables:
        pictures = {}
        for panel in panels:
            pictures[panel.name] = _figure(panel, figures)
            if panel.table is not None:
                panel.table.to_csv(tables / f"{panel.name}.csv", index=False)
            if progress is not None:
                progress()
    with atomic_write(folder / "report.json") as draft:
        draft.write_text(json.dumps(report_json(panels, facts, notes, title), indent=2) + "\n", encoding="utf-8")
    with atomic_write(folder / "report.html") as draft:
        draft.write_text(_html(panels, pictures, facts, notes, title), encoding="utf-8")
    return folder / "report.html"


def report_json(panels: Sequence[Panel], facts: Facts, notes: Sequence[str], title: str) -> dict[str, Any]:
    """Every number and sentence of the report as plain values; None for what is not a finite number."""
    shown = {
        panel.name: {
            "title": panel.title,
            "expected": panel.expected,
            "measured": panel.measured,
            "table": None if panel.table is None else panel.table.to_dict("records"),
        }
        for panel in panels
    }
    found: dict[str, Any] = _plain({"title": title, "notes": notes, "facts": facts, "panels": shown})
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    value = value.item() if hasattr(value, "item") else value  # numpy's
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _figure(panel: Panel, folder: Path) -> str:
    """Write a panel's figure as PNG and SVG; the element for the page, empty where there is none."""
    if panel.draw is None:
        return ""
    figure = _page.drawn(panel.draw)
    figure.savefig(folder / f"{panel.name}.png", dpi=150, facecolor="white")
    svg = _page.svg_file(figure, panel.name)
    (folder / f"{panel.name}.svg").write_text(svg, encoding="utf-8")
    return f"<figure>{_page.inline(svg, panel.name)}</figure>"


def _html(panels: Sequence[Panel], pictures: Mapping[str, str], facts: Facts, notes: Sequence[str], title: str) -> str:
    entries = {panel.name: panel.title for panel in panels} | {f"fact-{_anchor(name)}": name for name in facts}
    contents = "".join(f'<li><a href="#{anchor}">{escape(words)}</a></li>' for anchor, words in entries.items())
    said = "".join(f"<p>{escape(note)}</p>" for note in notes)
    sections = "".join(_section(panel, pictures[panel.name]) for panel in panels)
    told = "".join(_fact(name, fact) for name, fact in facts.items())
    body = f"<h1>{escape(title)}</h1>{said}<nav><ol>{contents}</ol></nav>{sections}{told}"
    return _page.page(title, body, STYLE)


def _section(panel: Panel, picture: str) -> str:
    expected = f"<p>The paper: {_prose(panel.expected)}</p>" if panel.expected else ""
    files = [f"figures/{panel.name}.{kind}" for kind in ("png", "svg") if picture]
    if panel.table is not None:
        files.append(f"tables/{panel.name}.csv")
    links = ", ".join(f'<a href="{file}">{file}</a>' for file in files)
    return (
        f'<section id="{panel.name}"><h2>{escape(panel.title)}</h2>{picture}{expected}'
        f"<p><strong>Here: {_prose(panel.measured)}</strong></p>"
        f'{"" if panel.table is None else _table(panel.table)}<p class="quiet">{links}</p></section>'
    )


def _prose(text: str) -> str:
    """A sentence with its formulas raised and lowered: Z^{ℓ+½}, R^c, U_k; names such as below_0.1 stay."""
    text = re.sub(r"\^(?:\{([^}]*)\}|(\w))", r"<sup>\1\2</sup>", escape(text))
    return re.sub(r"((?<!\w)[A-Zdθ]|[‖\]])_(\w)(?!\w)", r"\1<sub>\2</sub>", text)


def _table(table: pd.DataFrame) -> str:
    """A frame that opens and scrolls."""
    numeric = [" class=number" if kind.kind in "iuf" else "" for kind in table.dtypes]
    head = "".join(f"<th{kind}>{escape(str(name))}</th>" for name, kind in zip(table.columns, numeric, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td{kind}>{_cell(value)}</td>" for value, kind in zip(row, numeric, strict=True)) + "</tr>"
        for row in table.head(ROWS).itertuples(index=False)
    )
    more = f", the first {ROWS} of them here" if len(table) > ROWS else ""
    return (
        f"<details><summary>Numbers: {len(table):,} rows{more}</summary>"
        f'<div class="wide numbers"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></details>'
    )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:.4g}"
    return escape(str(value))


def _fact(name: str, fact: Mapping[str, Any] | str) -> str:
    if isinstance(fact, str):
        inside = f"<pre>{escape(fact)}</pre>"
    else:
        rows = "".join(f"<tr><th>{escape(key)}</th><td>{_value(value)}</td></tr>" for key, value in fact.items())
        inside = f'<div class="facts"><table><tbody>{rows}</tbody></table></div>'
    return f'<section id="fact-{_anchor(name)}"><h2>{escape(name)}</h2>{inside}</section>'


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        lines = "\n".join(f"{key}: {inner}" for key, inner in value.items())
        return f"<details><summary>{len(value)} values</summary><pre>{escape(lines)}</pre></details>"
    return f"{value:,}" if isinstance(value, int) else escape(str(value))


def _anchor(name: str) -> str:
    return "-".join(name.lower().split())
