"""The inspection report: one HTML page that needs nothing else, with every number and every figure beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from ..._files import atomic_folder, to_plain, write_json, write_text
from ..._page import Picture, render, render_figure
from ..._report import Report
from ...errors import CrateError
from .panel import Panel

ROWS = 200  # largest number of rows of a table on the page; the CSV file has all of them


@dataclass(frozen=True)
class InspectionReport(Report):
    """Panels on a model and its layers, with the facts that are needed to reproduce them."""

    title: str
    panels: Sequence[Panel]
    facts: Mapping[str, Mapping[str, Any] | str] = field(default_factory=dict)
    """Sections at the end of the page by name, each a mapping or a text."""
    notes: Sequence[str] = ()
    """Sentences at the top of the page."""
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    """Table of `layerwise` by the name of the model."""

    def to_dict(self) -> dict[str, Any]:
        """Return every number and sentence as plain values."""
        panels = {
            panel.name: {
                "title": panel.title,
                "expected": panel.expected,
                "measured": panel.measured,
                "table": None if panel.table is None else panel.table.to_dict("records"),
            }
            for panel in self.panels
        }
        values: dict[str, Any] = to_plain(
            {"title": self.title, "notes": self.notes, "facts": self.facts, "panels": panels}
        )
        return values

    def save(self, folder: str | Path, progress: Callable[[], None] | None = None) -> Path:
        """Write report.html, report.json, `tables/` (CSV) and `figures/` (PNG and SVG) to a folder; return the folder.

        The files of an earlier report in the folder are replaced. Every file is written atomically, and the page comes
        last, after all files that it links to. `progress` is called after each panel.
        """
        folder = Path(folder)
        twice = [name for name, count in Counter(panel.name for panel in self.panels).items() if count > 1]
        if twice:
            raise CrateError(f"two panels of the report have the name {twice[0]!r}; give each a name of its own")
        parts = (folder / "figures", folder / "tables")
        if not (folder / "report.json").exists() and any(part.exists() for part in parts):
            raise CrateError(f"{folder}: has figures or tables of something else than a report; give another folder")
        pictures: dict[str, Picture] = {}
        files: dict[str, list[str]] = {}
        with atomic_folder(parts[0]) as figures, atomic_folder(parts[1]) as tables:
            for panel in self.panels:
                name, written = panel.name, []
                if panel.draw is not None:
                    pictures[name] = render_figure(panel.draw, name)
                    pictures[name].figure.savefig(figures / f"{name}.png", dpi=150, facecolor="white")
                    (figures / f"{name}.svg").write_text(pictures[name].light, encoding="utf-8")
                    written += [f"figures/{name}.png", f"figures/{name}.svg"]
                if panel.table is not None:
                    panel.table.to_csv(tables / f"{name}.csv", index=False)
                    written.append(f"tables/{name}.csv")
                files[name] = written
                if progress is not None:
                    progress()
        write_json(folder / "report.json", self.to_dict())
        write_text(folder / "report.html", self._page(pictures, files))
        return folder

    def _repr_html_(self) -> str:
        pictures = {panel.name: render_figure(panel.draw, panel.name) for panel in self.panels if panel.draw}
        return render("frame.html", page=self._page(pictures, {}))

    def _page(self, pictures: Mapping[str, Picture], files: Mapping[str, Sequence[str]]) -> str:
        tables = {panel.name: _table(panel.table) for panel in self.panels if panel.table is not None}
        values = {"title": self.title, "panels": self.panels, "facts": self.facts, "notes": self.notes}
        return render("inspection.html", **values, pictures=pictures, files=files, tables=tables, rows=ROWS)


def _table(table: pd.DataFrame) -> Markup:
    """Return the first rows of a table as HTML; numbers are aligned right if all columns after the first have them."""
    numeric = table.iloc[:, 1:].select_dtypes("number").shape[1] == table.shape[1] - 1
    return Markup(
        table.head(ROWS).to_html(
            index=False, border=0, na_rep="–", float_format="{:.4g}".format, classes="numbers" if numeric else None
        )
    )
