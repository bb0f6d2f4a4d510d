"""The base class of every report: plain values for JSON, files in a folder, a table in a notebook."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from ._files import to_plain, write_json


class Report:
    """A frozen dataclass that holds the result of a measurement."""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values that JSON can hold."""
        return dict(to_plain(self))

    def save(self, folder: str | Path) -> Path:
        """Write `metrics.json`, and other files where a report has them, to a folder; return the folder."""
        return write_json(Path(folder) / "metrics.json", self.to_dict()).parent

    def _repr_html_(self) -> str:
        """Return the single numbers and words of the report as an HTML table, which notebooks display."""
        simple = {key: value for key, value in self.to_dict().items() if not isinstance(value, (dict, list))}
        rows = "".join(f"<tr><th>{escape(key)}</th><td>{escape(str(value))}</td></tr>" for key, value in simple.items())
        return f"<table>{rows}</table>"


class EvaluationReport(Report):
    """A report with `metrics`: its numbers by name, without counts, which are integers, and times."""

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics by name."""
        times = ("seconds", "images_per_second")
        return {name: value for name, value in self.to_dict().items() if type(value) is float and name not in times}
