"""The tab for text: predictions, the lens over layers, attention between tokens, units, generation, interventions."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr
import pandas as pd

from ...errors import CrateError
from ...inspection import ForwardTrace, Intervention
from ...inspection.measure.tracing import UnavailableError
from .. import draw, texts
from ..library import Entry, Library
from ..style import BUTTON_SCRIPT, TOKEN_SCRIPT
from .common import QUEUED, InterventionPanel, guarded, number, piece
from .model_tab import Link, ModelState, ModelTab, link_number

ALL_HEADS = "mean of all heads"


@dataclass(frozen=True, kw_only=True)
class TextState(ModelState):
    """State of the tab for one user."""

    text: str
    tokens: texts.TextInput
    position: int
    """The selected token."""
    head: int | None = None
    """The head whose attention is shown, from 1; None for the mean."""


def read(entry: Entry, text: str) -> TextState:
    """Return the state that shows a text."""
    tokens = texts.TextInput.of(entry, text)
    position, layer = texts.default_position(entry, tokens), max(1, entry.depth - 1)
    return TextState(name=entry.name, text=text, tokens=tokens, position=position, layer=layer)


class TextTab(ModelTab):
    """Components of the tab, and the functions that fill them."""

    kind = "text"

    def __init__(self, library: Library) -> None:
        super().__init__(library)
        names = library.names("text")
        with gr.Row():
            with gr.Column(scale=4, min_width=300), gr.Column(elem_classes="cx-card"):
                self.model = gr.Dropdown(
                    names, value=names[0], label="Model", interactive=True, elem_id="cx-text-model"
                )
                self.about = piece(draw.note("Opening the model and measuring its sample …"))
                self.prompt = gr.Textbox(label="Text", lines=4, max_lines=8, elem_id="cx-prompt")
                with gr.Row():
                    self.run = gr.Button("Read", variant="primary", size="sm", min_width=80, elem_id="cx-read")
                    self.one = gr.Button("Next token", size="sm", min_width=90, elem_id="cx-next")
                    self.many = gr.Button("20 tokens", size="sm", min_width=90, elem_id="cx-many")
                self.sampling = gr.Checkbox(
                    False, label="Draw tokens at random (temperature 0.8)", elem_id="cx-sampling"
                )
                self.prediction = piece(elem_id="cx-text-prediction")
                self.add_link()
            with gr.Column(scale=6, min_width=320), gr.Column(elem_classes="cx-card"):
                self.tokens = piece(script=TOKEN_SCRIPT, elem_id="cx-tokens")
                with gr.Row():
                    self.layer = gr.Slider(1, 2, 1, step=1, label="Layer", interactive=True, elem_id="cx-text-layer")
                    self.head = gr.Dropdown(
                        [ALL_HEADS],
                        value=ALL_HEADS,
                        label="Head",
                        interactive=True,
                        min_width=120,
                        elem_id="cx-text-head",
                    )
                self.lens = piece(elem_id="cx-lens")
        with gr.Column(elem_classes="cx-card"):
            self.units = piece(script=BUTTON_SCRIPT, elem_id="cx-units")
        with gr.Column(elem_classes="cx-card"):
            self.curves = piece()
        with gr.Column(elem_classes="cx-card"):
            self.panel = InterventionPanel("unit")
        self.token_outputs: list[Any] = [self.state, self.tokens, self.prediction, self.lens, self.units]
        self.token_outputs += [self.panel.answer, self.link]
        self.layer_outputs: list[Any] = [self.state, self.tokens, self.units, self.link, self.curves]
        own = [self.model, self.about, self.prompt, self.layer, self.head, self.curves, self.one, self.many]
        self.outputs: list[Any] = [*self.token_outputs, *own, *self.panel.outputs]
        self._connect()

    # Values of the components

    def _passed(self, state: TextState) -> ForwardTrace:
        return self.library.look(state.name, state.tokens, state.changes)

    def _tokens(self, state: TextState) -> str:
        entry = self.library.entry(state.name)
        which = "the mean of all heads" if state.head is None else f"head {state.head}"
        try:
            weights = texts.token_attention(self._passed(state), state.layer - 1, state.head and state.head - 1)
            caption = (
                f"Hover a token: the tokens that it attends to are shaded ({which}, layer {state.layer}). "
                "Click one to see what is predicted there."
            )
        except CrateError as error:
            weights, caption = None, f"{error}."
        if state.tokens.skipped:
            caption += (
                f" The model reads the last {len(state.tokens.ids):,} tokens; {state.tokens.skipped:,} come before."
            )
        strip = draw.token_strip(texts.token_texts(entry, state.tokens.ids), weights, state.position)
        return draw.heading("Tokens", caption) + strip

    def _prediction(self, state: TextState) -> str:
        entry, changed = self.library.entry(state.name), state.changes != Intervention()
        found = texts.predict(self.library, state.name, state.tokens, state.position, state.changes, top=6)
        if entry.classifies_text:
            title = "Label"
        else:
            title = "Token at the selected place" if entry.masked else "Next token after the selected one"
        caption = "Probability before → after the intervention." if changed else "The most probable ones."
        return draw.heading(title, caption) + draw.prediction_bars(found, changed)

    def _lens(self, state: TextState) -> str:
        try:
            rows = texts.lens_rows(self.library, state.name, state.tokens, state.position, state.changes)
        except UnavailableError as error:
            return draw.note(f"{error}.")
        cells = [(row.layer, row.tokens, row.probabilities, row.final) for row in rows]
        caption = "The model's own head reads the selected token after every layer: how the answer forms."
        return draw.heading("Lens over the layers", caption) + draw.lens_table(cells)

    def _units(self, state: TextState) -> str:
        try:
            found = texts.firing_units(
                self.library, state.name, state.tokens, state.position, state.layer - 1, state.changes
            )
        except UnavailableError as error:
            return draw.note(f"{error}.")
        listed = [(one.unit, one.activation, one.share, one.texts) for one in found]
        caption = (
            f"Units of the sparse code of layer {state.layer} that fire most on the selected token, with the places of "
            "the sample text that excite them most. Click a unit to remove it."
        )
        return draw.heading("Units that fire here", caption) + draw.unit_list(listed, state.layer)

    def _curves(self, state: TextState) -> str:
        library = self.library
        tables = {"this text": library.curves(state.name, state.tokens, state.changes)}
        if state.changes != Intervention():
            tables["before"] = library.curves(state.name, state.tokens, Intervention())
        tables["sample mean"] = texts.reference_table(library.entry(state.name))
        caption = "The same measures as for images. The sample's texts are as long as the context, so its rates differ."
        return draw.heading("Every layer, for this text", caption) + draw.layer_curves(tables, state.layer)

    def show_token(self, state: TextState) -> dict[Any, Any]:
        """Return what depends on the selected token; no forward pass is needed."""
        prediction = self._prediction(state)
        return {
            self.state: state,
            self.tokens: self._tokens(state),
            self.prediction: prediction,
            self.panel.answer: prediction,
            self.lens: self._lens(state),
            self.units: self._units(state),
            self.link: self.show_link(state),
        }

    def show_layer(self, state: TextState) -> dict[Any, Any]:
        """Return what depends on layer and head."""
        return {
            self.state: state,
            self.tokens: self._tokens(state),
            self.units: self._units(state),
            self.link: self.show_link(state),
            self.curves: self._curves(state),
        }

    def show_model(self, state: TextState) -> dict[Any, Any]:
        """Return what an intervention or another text changes."""
        entry = self.library.entry(state.name)
        depth = state.changes.layers or entry.depth
        state = replace(state, layer=min(state.layer, depth))
        return {
            **self.show_token(state),
            self.curves: self._curves(state),
            self.prompt: state.text,
            self.layer: gr.update(maximum=max(depth, 2), value=state.layer),
            **self.panel.show(entry, state.changes, state.scores),
        }

    def show_all(self, state: TextState) -> dict[Any, Any]:
        """Return everything, for another model."""
        entry = self.library.entry(state.name)
        heads = [ALL_HEADS, *(f"head {head}" for head in range(1, entry.heads + 1))]
        hint = " Write <mask> where a token is to be filled in." if entry.masked else ""
        return {
            **self.show_model(state),
            self.model: gr.update(value=state.name, choices=self.library.names("text")),
            self.about: draw.note(f"{entry.subtitle}.{hint}"),
            self.head: gr.update(choices=heads, value=ALL_HEADS if state.head is None else f"head {state.head}"),
            self.one: gr.update(interactive=entry.generates),
            self.many: gr.update(interactive=entry.generates),
        }

    # Events

    def first_state(self, name: str) -> TextState:
        entry = self.library.entry(name)
        return read(entry, texts.sample_text(entry))

    def choose_model(self, name: str) -> dict[Any, Any]:
        """Open another model."""
        return self.show_all(self.first_state(name))

    def choose_text(self, state: TextState, text: str) -> dict[Any, Any]:
        """Read another text, with the same intervention."""
        fresh = read(self.library.entry(state.name), text)
        return self.show_model(replace(fresh, layer=state.layer, head=state.head, changes=state.changes))

    def choose_token(self, state: TextState, event: gr.EventData) -> dict[Any, Any]:
        """Select a token."""
        return self.show_token(replace(state, position=number(event, "token", 0, len(state.tokens.ids) - 1)))

    def choose_layer(self, state: TextState, layer: float, head: str) -> dict[Any, Any]:
        """Select a layer or a head."""
        entry = self.library.entry(state.name)
        depth = state.changes.layers or entry.depth
        names = {f"head {one}": one for one in range(1, entry.heads + 1)}
        return self.show_layer(replace(state, layer=min(max(1, int(layer)), depth), head=names.get(head)))

    def extend(self, state: TextState, text: str, sampling: bool, tokens: int) -> dict[Any, Any]:
        """Let the model with its intervention continue the text."""
        seed = len(text)  # another one for every step
        longer = texts.next_text(
            self.library, state.name, text, state.changes, tokens=tokens, greedy=not sampling, seed=seed
        )
        return self.choose_text(state, longer)

    # The base class asks for these

    def question(self, state: TextState) -> Hashable:
        return state.name, state.tokens.key, state.position

    def rank_heads(self, state: TextState, progress: Callable[[int, int], object]) -> pd.DataFrame:
        return texts.important_heads(self.library, state.name, state.tokens, state.position, progress)

    def link_values(self, state: TextState) -> dict[str, Any]:
        return {"text": state.text, "token": state.position + 1, "head": state.head}

    def read_link(self, entry: Entry, link: Link) -> TextState:
        state = read(entry, link["text"]) if "text" in link else self.first_state(entry.name)
        position = link_number(link, "token", 1, len(state.tokens.ids), state.position + 1) - 1
        head = link_number(link, "head", 1, entry.heads, 0)
        return replace(state, position=position, head=head or None)

    def _connect(self) -> None:
        hidden: Any = {"show_progress": "hidden", "trigger_mode": "always_last", **QUEUED}
        self.model.input(
            guarded(self.choose_model), [self.model], self.outputs, show_progress_on=[self.about], **QUEUED
        )
        for event in (self.run.click, self.prompt.submit):
            event(guarded(self.choose_text), [self.state, self.prompt], self.outputs, **hidden)
        for button, tokens in ((self.one, 1), (self.many, 20)):

            def extend(state: TextState, text: str, sampling: bool, count: int = tokens) -> Any:
                return self.extend(state, text, sampling, count)

            button.click(
                guarded(extend),
                [self.state, self.prompt, self.sampling],
                self.outputs,
                show_progress_on=[self.prompt],
                **QUEUED,
            )
        self.tokens.select(guarded(self.choose_token), [self.state], self.token_outputs, **hidden)
        for control in (self.layer, self.head):
            control.input(
                guarded(self.choose_layer),
                [self.state, self.layer, self.head],
                self.layer_outputs,
                **hidden,
            )
        self.connect_panel(self.units)
