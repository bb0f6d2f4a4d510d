"""The base of the tabs that show one model on one input: interventions, the ranking of heads, and links to a state."""

from __future__ import annotations

import html
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from urllib.parse import urlencode

import gradio as gr
import pandas as pd

from ...errors import CrateError, shown
from ...inspection import Intervention
from .. import draw
from ..library import Entry, Library
from ..style import LINK_SCRIPT
from .common import QUEUED, InterventionPanel, Scores, guarded, number, piece, read_changes

LINK_CHARACTERS = 8000
"""Longest link that is offered; servers and browsers cut longer ones."""
RANKING: Any = {"concurrency_id": "ranking", "concurrency_limit": 1}
"""Rankings wait for each other only, so that the clicks of other users are answered meanwhile."""

Link = Mapping[str, str]
"""The query of a link."""


@dataclass(frozen=True, kw_only=True)
class ModelState:
    """State of a tab for one user. A new value replaces it on every change."""

    name: str
    layer: int = 1
    changes: Intervention = field(default_factory=Intervention)
    scores: Scores = field(default_factory=dict)
    """The ranking of heads; empty before they are ranked."""


@dataclass(frozen=True)
class Ranking:
    """Heads ranked for one question: a model, an input, and a place in it."""

    question: Hashable
    scores: Scores


def link_number(link: Link, name: str, low: int, high: int, default: int) -> int:
    """Return a number of a link, if it is one and in its range."""
    value = link.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdecimal() and len(value) <= 9 and low <= int(value) <= high):
        raise CrateError(f"{name} is {shown(value)}; it must be a whole number from {low} to {high}")
    return int(value)


def link_choice(link: Link, name: str, choices: tuple[str, ...] | list[str], default: str) -> str:
    """Return a value of a link that must be one of some choices."""
    value = link.get(name, default)
    if value not in choices:
        raise CrateError(f"{name} is {shown(value)}; it must be one of: {', '.join(choices)}")
    return value


class ModelTab(ABC):
    """A tab that shows one model on one input; subclasses lay it out and compute what it shows."""

    kind: ClassVar[str]
    """Name of the tab in links."""
    library: Library
    panel: InterventionPanel
    outputs: list[Any]
    """All components that handlers fill."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.state = gr.State(None, time_to_live=7200)
        self.ranking = gr.State(None, time_to_live=7200)

    def add_link(self) -> None:
        """Add the control that copies a link to the state."""
        self.link = piece(script=LINK_SCRIPT, elem_id=f"cx-link-{self.kind}")

    # Functions that a subclass defines

    @abstractmethod
    def first_state(self, name: str) -> Any:
        """Return the state that shows the first sample of a model."""

    @abstractmethod
    def show_model(self, state: Any) -> dict[Any, Any]:
        """Return what an intervention or another input changes."""

    @abstractmethod
    def show_all(self, state: Any) -> dict[Any, Any]:
        """Return everything, for another model."""

    @abstractmethod
    def question(self, state: Any) -> Hashable:
        """Return what a ranking of heads depends on."""

    @abstractmethod
    def rank_heads(self, state: Any, progress: Callable[[int, int], object]) -> pd.DataFrame:
        """Rank the heads of the original model on the input."""

    @abstractmethod
    def link_values(self, state: Any) -> dict[str, Any]:
        """Return the values of a state that a link holds beside those of every tab; None is left out."""

    @abstractmethod
    def read_link(self, entry: Entry, link: Link) -> Any:
        """Return the state of a link, without layer and changes; refuse values that the model does not have."""

    # Links

    def query(self, state: Any) -> str:
        """Return the query of the link that reproduces a state."""
        values = {"tab": self.kind, "model": state.name, "layer": state.layer, **self.link_values(state)}
        if state.changes != Intervention():
            values["changes"] = json.dumps(state.changes.to_dict(), separators=(",", ":"))
        return "?" + urlencode({name: value for name, value in values.items() if value is not None})

    def show_link(self, state: Any, note: str = "") -> str:
        """Return the control that copies the link, or a sentence if the link would be too long."""
        query = self.query(state)
        if len(query) > LINK_CHARACTERS:
            return draw.note("This text is too long for a link.")
        return draw.link_button(query, note)

    def open_link(self, link: Link) -> Any:
        """Return the state of a link; everything in it is checked."""
        names = self.library.names(self.modality)
        entry = self.library.entry(link_choice(link, "model", names, names[0]))
        changes = self.normal(entry, read_changes(link.get("changes", ""), entry))
        state = self.read_link(entry, link)
        depth = changes.layers or entry.depth
        return replace(state, changes=changes, layer=link_number(link, "layer", 1, depth, min(state.layer, depth)))

    @property
    def modality(self) -> Any:
        """Whether the models of this tab read images or text."""
        return "vision" if self.kind == "image" else "text"

    def load(self, request: gr.Request) -> dict[Any, Any]:
        """Return the state of the page's link, or the first sample of the first model."""
        link = dict(request.query_params)
        if link.get("tab") == self.kind:
            try:
                return self.show_all(self.open_link(link))
            except CrateError as error:
                gr.Warning(html.escape(f"The link cannot be opened: {error}."), duration=12)
        return self.show_all(self.first_state(self.library.names(self.modality)[0]))

    # Interventions

    def normal(self, entry: Entry, changes: Intervention) -> Intervention:
        """Return an intervention without an early exit after the last layer, which changes nothing."""
        return replace(changes, layers=None) if changes.layers == entry.depth else changes

    def change(self, state: Any, changes: Intervention | str) -> dict[Any, Any]:
        """Intervene in the model, or replay an intervention that is given as JSON."""
        entry = self.library.entry(state.name)
        changes = read_changes(changes, entry) if isinstance(changes, str) else changes
        return self.show_model(replace(state, changes=self.normal(entry, changes)))

    def remove_atom(self, state: Any, event: gr.EventData) -> dict[Any, Any]:
        """Remove an atom, which is a unit of the sparse code, of the current layer."""
        pair = state.layer, number(event, "atom", 1, 10**6)
        return self.change(state, replace(state.changes, atoms=(*state.changes.atoms, pair)))

    def rank(self, state: Any, progress: gr.Progress = gr.Progress()) -> Ranking:  # noqa: B008 (gradio's way)
        """Rank the heads, with a progress bar."""

        def report(done: int, total: int) -> None:
            progress((done, total), desc="switching off every head", unit="layers")

        table = self.rank_heads(state, report)
        scores = {(int(row.layer), int(row.head)): float(row.drop) for row in table.itertuples()}
        return Ranking(self.question(state), scores)

    def show_ranking(self, state: Any, ranking: Ranking | None) -> dict[Any, Any]:
        """Show a ranking, unless the user has gone on to another input meanwhile."""
        if ranking is not None and ranking.question == self.question(state):
            state = replace(state, scores=ranking.scores)
        return {self.state: state, **self.panel.show(self.library.entry(state.name), state.changes, state.scores)}

    def connect_panel(self, atoms: gr.HTML) -> None:
        """Connect the panel of interventions, and the component whose buttons remove atoms."""
        every: Any = {"show_progress": "hidden", "trigger_mode": "multiple", **QUEUED}
        atoms.select(guarded(self.remove_atom), [self.state], self.outputs, **every)
        self.panel.connect(self.state, self.outputs, self.change)
        ranked = self.panel.rank.click(
            guarded(self.rank), [self.state], [self.ranking], show_progress_on=[self.panel.ranking], **RANKING
        )
        ranked.success(
            guarded(self.show_ranking), [self.state, self.ranking], [self.state, *self.panel.outputs], **every
        )
