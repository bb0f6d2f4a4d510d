"""The tab that shows two models on the same input, side by side: white box and black box, before and after training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import gradio as gr
from PIL import Image

from ..._chart import BLUE, ORANGE, Series, line_chart
from ...errors import CrateError
from ...inspection import Intervention
from ...inspection.measure.tracing import UnavailableError
from .. import draw, images, texts
from ..library import Library, Modality
from ..style import BUTTON_SCRIPT, DROP_SCRIPT, PICTURE_SCRIPT
from .common import QUEUED, guarded, number, piece
from .image import DROP, read_event


@dataclass(frozen=True)
class CompareState:
    """State of the tab for one user."""

    names: tuple[str, str]
    index: int = 0
    """The sample image of the first model that both read."""
    picture: Image.Image | None = None
    text: str = ""
    depth: float = 1.0
    """The layer that is shown, as a share of each model's depth."""
    place: tuple[float, float] = (0.5, 0.5)
    """The selected patch, as shares of height and width, because grids may differ."""


class CompareTab:
    """Components of the tab, and the functions that fill them."""

    def __init__(self, library: Library) -> None:
        self.library = library
        names = library.names(before=True)
        first, second = self._start_names()
        self.state = gr.State(None, time_to_live=7200)
        with gr.Column(elem_classes="cx-card"):
            piece(
                draw.heading(
                    "Two models on one input",
                    "Choose a white box and its black-box twin, or a model before and after training: at an earlier "
                    "step if the run has kept a checkpoint, else untrained. The slider moves through both.",
                )
            )
            with gr.Row():
                self.left = gr.Dropdown(names, value=first, label="Left", interactive=True, elem_id="cx-left")
                self.right = gr.Dropdown(names, value=second, label="Right", interactive=True, elem_id="cx-right")
            self.samples = piece(script=BUTTON_SCRIPT, elem_id="cx-compare-samples")
            self.upload = piece(DROP, DROP_SCRIPT, visible=True, elem_id="cx-compare-upload")
            self.prompt = gr.Textbox(label="Text", lines=3, elem_id="cx-compare-prompt")
            self.depth = gr.Slider(
                0, 100, 80, step=1, label="Depth in percent", interactive=True, elem_id="cx-compare-depth"
            )
        with gr.Row():
            with gr.Column(elem_classes="cx-card", min_width=300):
                self.views = [piece(script=PICTURE_SCRIPT, elem_id="cx-compare-left")]
            with gr.Column(elem_classes="cx-card", min_width=300):
                self.views.append(piece(script=PICTURE_SCRIPT, elem_id="cx-compare-right"))
        with gr.Column(elem_classes="cx-card"):
            self.curves = piece(elem_id="cx-compare-curves")
        self.outputs: list[Any] = [self.state, *self.views, self.curves, self.samples, self.upload, self.prompt]
        self.outputs += [self.left, self.right]
        self._connect()

    def _start_names(self) -> tuple[str, str]:
        """Return two models that read the same kind of input: two trained ones, or one after training and before it.

        Of the trained ones, a white box is shown beside a black box if there are both. "Before" is the earliest
        checkpoint that the run has kept, or the untrained model if it has kept none.
        """
        kinds: tuple[Modality, ...] = ("vision", "text")
        for modality in kinds:
            trained = self.library.names(modality)
            if len(trained) > 1 and modality == "vision":
                kind = self.library.entry(trained[0]).white_box
                others = [name for name in trained[1:] if self.library.entry(name).white_box != kind]
                return trained[0], (others or trained[1:])[0]
            if trained:
                others = [name for name in self.library.names(modality, before=True) if name != trained[0]]
                same = [name for name in others if name.startswith(trained[0])]
                return trained[0], (same or others or trained)[0]
        raise CrateError("there is no model to compare yet")

    # Values of the components

    def show(self, state: CompareState) -> dict[Any, Any]:
        """Return everything for a state."""
        entries = [self.library.entry(name) for name in state.names]
        if entries[0].modality != entries[1].modality:
            raise CrateError("one of the models reads images and the other text; choose two of a kind")
        vision = entries[0].modality == "vision"
        if not vision and texts.tokenizer_of(entries[0]).get_vocab() != texts.tokenizer_of(entries[1]).get_vocab():
            raise CrateError("the two models have different tokenizers; choose two that read the same tokens")
        views, tables = zip(*(self._image(state, n) if vision else self._text(state, n) for n in (0, 1)), strict=True)
        shown = images.reference(self.library, state.names[0]) if vision else None
        thumbs = [] if shown is None else [draw.thumbnail_url(one.picture) for one in shown.images]
        choices = self.library.names(before=True)
        return {
            self.state: state,
            self.views[0]: views[0],
            self.views[1]: views[1],
            self.curves: self._curves(state, tables),
            self.samples: draw.thumbnails(thumbs, shown.labels) if shown is not None else "",
            self.upload: gr.update(visible=vision),
            self.prompt: gr.update(visible=not vision, value=state.text),
            self.left: gr.update(choices=choices, value=state.names[0]),
            self.right: gr.update(choices=choices, value=state.names[1]),
        }

    def _image(self, state: CompareState, side: int) -> tuple[str, Any]:
        library, name = self.library, state.names[side]
        entry = library.entry(name)
        sample = images.reference(library, state.names[0]).images[state.index]
        if state.picture is None and sample.fits(entry):
            image = sample
        else:
            image = images.ImageInput.of(entry, state.picture or sample.picture)
        none = Intervention()
        passed, grid = library.look(name, image), images.grid(entry, image)
        layer, patch = _layer(state.depth, entry.depth), _patch(state.place, grid)
        try:
            bars = draw.prediction_bars(images.predict(library, name, image, none, top=3), changed=False)
        except UnavailableError as error:
            bars = draw.note(f"{error}.")
        url = draw.data_url(image.picture)
        colors = (
            images.reference(library, name)
            .colors[layer]
            .colors(passed.tokens[layer + 1][0, images.first_patch(entry) :])
        )
        overlay = draw.patch_url((colors * 255).astype("uint8"), grid)
        try:
            maps = draw.attention_grid(url, images.patch_attention(passed, entry, layer, patch), grid, patch, ())
        except UnavailableError as error:
            maps = draw.note(f"{error}.")
        html = [
            draw.heading(name, f"{entry.subtitle}. Patches are colored by principal components, layer {layer + 1}."),
            bars,
            draw.picture_view(url, grid, patch, overlay, name),
            draw.heading(
                "Attention of the framed patch", f"One map per head of layer {layer + 1}; click a patch above."
            ),
            maps,
        ]
        return _spaced(html), library.curves(name, image, none)

    def _text(self, state: CompareState, side: int) -> tuple[str, Any]:
        library, name = self.library, state.names[side]
        entry = library.entry(name)
        text = texts.TextInput.of(entry, state.text)
        position, none = texts.default_position(entry, text), Intervention()
        bars = draw.prediction_bars(texts.predict(library, name, text, position, none, top=6), changed=False)
        try:
            rows = texts.lens_rows(library, name, text, position, none)
            lens = draw.lens_table([(row.layer, row.tokens, row.probabilities, row.final) for row in rows])
        except UnavailableError as error:
            lens = draw.note(f"{error}.")
        title = "Answer at the mask" if entry.masked else "Next token"
        html = [
            draw.heading(name, f"{entry.subtitle}. {title}:"),
            bars,
            draw.heading("Lens", "Read after every layer."),
            lens,
        ]
        return _spaced(html), library.curves(name, text, none)

    def _curves(self, state: CompareState, tables: Any) -> str:
        charts = []
        for column, (title, share) in draw.CURVE_TITLES.items():
            series = [
                Series(name, table["layer"], table[column], color)
                for name, table, color in zip(state.names, tables, (BLUE, ORANGE), strict=True)
            ]
            charts.append(f"<div>{line_chart(series, title, percent=share)}</div>")
        caption = "For this input. Rᶜ of a black box uses its value matrices as U, so compare directions, not sizes."
        return draw.heading("Every layer of both models", caption) + f'<div class="cx-charts">{"".join(charts)}</div>'

    # Events

    def load(self) -> dict[Any, Any]:
        """Return the first pair."""
        return self.choose_models(None, *self._start_names())

    def choose_models(self, state: CompareState | None, left: str, right: str) -> dict[Any, Any]:
        """Compare two other models, on the same input if they can read it."""
        names, entry = (left, right), self.library.entry(left)
        kept = state is not None and self.library.entry(state.names[0]).modality == entry.modality
        if state is not None and kept:
            fresh = replace(state, names=names)
        else:
            text = texts.sample_text(entry) if entry.modality == "text" else ""
            fresh = CompareState(names, text=text, depth=0.8)
        try:
            return self.show(fresh)
        except CrateError:
            if state is None or not kept or entry.modality == "vision":
                raise
            return self.show(replace(fresh, text=texts.sample_text(entry)))

    def choose_sample(self, state: CompareState, event: gr.EventData) -> dict[Any, Any]:
        """Compare on a sample image of the first model."""
        count = len(images.reference(self.library, state.names[0]).images)
        return self.show(replace(state, picture=None, index=number(event, "index", 0, count - 1)))

    def choose_file(self, state: CompareState, event: gr.EventData) -> dict[Any, Any]:
        """Compare on a picture that was dropped, pasted or chosen."""
        return self.show(replace(state, picture=images.shrink(read_event(event))))

    def choose_text(self, state: CompareState, text: str) -> dict[Any, Any]:
        """Compare on another text."""
        return self.show(replace(state, text=text))

    def choose_depth(self, state: CompareState, depth: float) -> dict[Any, Any]:
        """Show other layers."""
        return self.show(replace(state, depth=min(max(depth / 100, 0.0), 1.0)))

    def choose_patch(self, state: CompareState, event: gr.EventData, side: int) -> dict[Any, Any]:
        """Select a patch in one of the pictures."""
        entry = self.library.entry(state.names[side])
        sides, size = entry.model.config.image_sides, entry.model.config.patch_size
        rows, columns = (length // size for length in sides)
        row, column = divmod(number(event, "patch", 0, rows * columns - 1), columns)
        return self.show(replace(state, place=((row + 0.5) / rows, (column + 0.5) / columns)))

    def _connect(self) -> None:
        hidden: Any = {"show_progress": "hidden", "trigger_mode": "always_last", **QUEUED}
        for control in (self.left, self.right):
            control.input(
                guarded(self.choose_models),
                [self.state, self.left, self.right],
                self.outputs,
                show_progress_on=[self.curves],
                **QUEUED,
            )
        self.samples.select(guarded(self.choose_sample), [self.state], self.outputs, **hidden)
        self.upload.upload(guarded(self.choose_file), [self.state], self.outputs, **hidden)
        self.prompt.submit(guarded(self.choose_text), [self.state, self.prompt], self.outputs, **hidden)
        self.prompt.blur(guarded(self.choose_text), [self.state, self.prompt], self.outputs, **hidden)
        self.depth.input(guarded(self.choose_depth), [self.state, self.depth], self.outputs, **hidden)
        for side, view in enumerate(self.views):

            def choose(state: CompareState, event: gr.EventData, which: int = side) -> Any:
                return self.choose_patch(state, event, which)

            view.select(guarded(choose), [self.state], self.outputs, **hidden)


def _layer(share: float, depth: int) -> int:
    return min(depth - 1, max(0, round(share * depth) - 1))


def _patch(place: tuple[float, float], grid: tuple[int, int]) -> int:
    row, column = (min(int(share * count), count - 1) for share, count in zip(place, grid, strict=True))
    return row * grid[1] + column


def _spaced(parts: list[str]) -> str:
    return f'<div class="cx-stack">{"".join(f"<div>{part}</div>" for part in parts)}</div>'
