"""The tab for images: prediction, patches, heads, sparse code, similar patches, curves, interventions."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr
import numpy as np
import pandas as pd
from PIL import Image

from ...errors import CrateError
from ...inspection import ForwardTrace, Intervention
from ...inspection.measure.tracing import UnavailableError
from .. import draw, images
from ..library import Entry, Library
from ..style import BUTTON_SCRIPT, DROP_SCRIPT, PICTURE_SCRIPT
from .common import QUEUED, InterventionPanel, guarded, number, piece
from .model_tab import Link, ModelState, ModelTab, link_choice, link_number

EXPLAINED = 6
"""Number of atoms that are shown with the patches that excite them most."""
COLORINGS = ("picture", "principal components", "nearest subspace")
DROP = (
    '<label class="cx-drop">Drop or paste a picture, or <u>choose a file</u>'
    '<input type="file" accept="image/*" aria-label="picture"></label>'
)


@dataclass(frozen=True, kw_only=True)
class ImageState(ModelState):
    """State of the tab for one user."""

    image: images.ImageInput
    sample: int | None = None
    """Index of the sample image; None for a picture that was uploaded."""
    picture: Image.Image | None = None
    """The picture that was uploaded, for other models; None for a sample."""
    caption: str = ""
    patch: int = 0
    coloring: str = COLORINGS[0]


def read_event(event: gr.EventData) -> Image.Image:
    """Decode the picture that the browser sent."""
    data = event._data if isinstance(event._data, dict) else {}
    name, content, size = str(data.get("name") or "picture"), data.get("content"), data.get("size")
    if isinstance(size, (int, float)) and size > images.UPLOAD_BYTES:
        raise CrateError(f"{name[:60]}: the file has {size / 2**20:.1f} MB; the limit is 10 MB. Scale it down first")
    if not isinstance(content, str) or len(content) > 2 * images.UPLOAD_BYTES:
        raise CrateError(f"{name[:60]}: cannot be read; use a file of at most 10 MB")
    try:
        return images.read_upload(base64.b64decode(content, validate=True), name)
    except binascii.Error:
        raise CrateError(f"{name[:60]}: did not arrive as a whole; send it again") from None


def middle_patch(entry: Entry, image: images.ImageInput) -> int:
    """Return the patch in the middle of an image."""
    rows, columns = images.grid(entry, image)
    return (rows // 2) * columns + columns // 2


def start(library: Library, name: str, index: int = 0) -> ImageState:
    """Return the state that shows a sample image of a model."""
    entry, sample = library.entry(name), images.reference(library, name)
    if not 0 <= index < len(sample.images):
        raise CrateError(f"there is no sample {index + 1}; choose one of the {len(sample.images)}")
    image, label = sample.images[index], sample.labels[index]
    caption = f"sample {index + 1}" + (f", true class: {label}" if label else "")
    layer, patch = max(1, entry.depth - 1), middle_patch(entry, image)
    return ImageState(name=name, image=image, sample=index, caption=caption, layer=layer, patch=patch)


class ImageTab(ModelTab):
    """Components of the tab, and the functions that fill them."""

    kind = "image"

    def __init__(self, library: Library) -> None:
        super().__init__(library)
        names = library.names("vision")
        with gr.Row():
            with gr.Column(scale=3, min_width=290):
                with gr.Column(elem_classes="cx-card"):
                    self.model = gr.Dropdown(names, value=names[0], label="Model", interactive=True, elem_id="cx-model")
                    self.about = piece(draw.note("Opening the model and measuring its sample …"))
                    self.samples = piece(script=BUTTON_SCRIPT, elem_id="cx-samples")
                    self.upload = piece(DROP, DROP_SCRIPT, elem_id="cx-upload")
                    self.add_link()
                with gr.Column(elem_classes="cx-card"):
                    self.prediction = piece(elem_id="cx-prediction")
            with gr.Column(scale=4, min_width=320), gr.Column(elem_classes="cx-card"):
                self.head = piece()
                self.picture = piece(script=PICTURE_SCRIPT, elem_id="cx-picture")
                self.legend = piece()
                self.layer = gr.Slider(1, 2, 1, step=1, label="Layer", interactive=True, elem_id="cx-layer")
                self.coloring = gr.Radio(
                    list(COLORINGS), value=COLORINGS[0], label="Color the patches by", elem_id="cx-coloring"
                )
            with gr.Column(scale=4, min_width=320):
                with gr.Column(elem_classes="cx-card"):
                    self.heads = piece(elem_id="cx-attention")
                with gr.Column(elem_classes="cx-card"):
                    self.code = piece(script=BUTTON_SCRIPT, elem_id="cx-code")
        with gr.Column(elem_classes="cx-card"):
            self.neighbors = piece(elem_id="cx-neighbors")
        with gr.Column(elem_classes="cx-card"):
            self.curves = piece(elem_id="cx-curves")
        with gr.Column(elem_classes="cx-card"):
            self.panel = InterventionPanel("atom")
        self.patch_outputs: list[Any] = [self.state, self.picture, self.heads, self.code, self.neighbors, self.link]
        self.layer_outputs: list[Any] = [*self.patch_outputs, self.head, self.legend, self.curves]
        own = [self.model, self.about, self.samples, self.prediction, self.panel.answer, self.layer, self.coloring]
        self.outputs: list[Any] = [*self.layer_outputs, *own, *self.panel.outputs]
        self._connect()

    # Values of the components

    def _passed(self, state: ImageState) -> ForwardTrace:
        return self.library.look(state.name, state.image, state.changes)

    def show_patch(self, state: ImageState) -> dict[Any, Any]:
        """Return what depends on the selected patch; no forward pass is needed."""
        library, entry, passed = self.library, self.library.entry(state.name), self._passed(state)
        grid, layer, url = images.grid(entry, state.image), state.layer - 1, state.image.url
        code = images.patch_code(passed, entry, layer, state.patch)
        removed = [atom for at, atom in state.changes.atoms if at == state.layer]
        try:
            weights = images.patch_attention(passed, entry, layer, state.patch)
            off = [head for at, head in state.changes.heads if at == state.layer]
            maps = draw.attention_grid(url, weights, grid, state.patch, off)
        except UnavailableError as error:
            maps = draw.note(f"{error}.")
        sample = images.reference(library, state.name)
        bars = draw.heading("No sparse code", "The MLP of a black box writes to every coordinate; nothing is off.")
        if images.has_code(entry):
            caption = (
                f"The atoms of layer {state.layer} that this patch uses, with the patches of the sample that excite "
                "them most. Click one to remove it."
            )
            strongest = np.argsort(-np.abs(code), kind="stable")[:EXPLAINED]
            excited = [self._exciting(entry, layer, int(atom), grid) for atom in strongest]
            bars = draw.heading("Sparse code", caption) + draw.code_bars(code, state.layer, removed, excited)
        tiles = [
            (self._thumbnail(entry, one.image), one.patch, grid, one.cosine, sample.labels[one.image])
            for one in images.nearest_patches(sample, layer, code, count=12)
        ]
        return {
            self.state: state,
            self.picture: self._picture(state, url),
            self.heads: draw.heading(
                f"Attention in layer {state.layer}",
                "One map per head: brighter patches are closer to the framed patch in the subspace of that head.",
            )
            + maps,
            self.code: bars,
            self.link: self.show_link(state, "" if state.picture is None else "without your picture"),
            self.neighbors: draw.heading(
                "Patches with the most similar code", "From the sample images, with the cosine of the two codes."
            )
            + draw.neighbor_tiles(tiles),
        }

    def _exciting(self, entry: Entry, layer: int, atom: int, grid: tuple[int, int]) -> list[draw.Tile]:
        sample = images.reference(self.library, entry.name)
        tiles: list[draw.Tile] = []
        for row in sample.exciting[layer][atom].tolist():
            index, patch = divmod(row, grid[0] * grid[1])
            tiles.append((self._thumbnail(entry, index), patch, grid, None, sample.labels[index]))
        return tiles

    def _thumbnail(self, entry: Entry, index: int) -> str:
        image = images.reference(self.library, entry.name).images[index]
        return str(entry.once(("thumbnail", index), lambda: draw.thumbnail_url(image.picture)))

    def _picture(self, state: ImageState, url: str) -> str:
        entry, passed = self.library.entry(state.name), self._passed(state)
        grid, overlay = images.grid(entry, state.image), None
        if state.coloring == COLORINGS[1]:
            sample = images.reference(self.library, state.name)
            colors = images.component_colors(passed, entry, sample, state.layer - 1)
            overlay = draw.patch_url((colors * 255).astype("uint8"), grid)
        elif state.coloring == COLORINGS[2] and passed.bases[state.layer - 1] is not None:
            nearest = images.nearest_subspaces(passed, entry, state.layer - 1)
            overlay = draw.patch_url(draw.subspace_colors(entry.heads)[nearest], grid)
        return draw.picture_view(url, grid, state.patch, overlay, state.caption or "picture")

    def _legend(self, state: ImageState) -> str:
        entry = self.library.entry(state.name)
        if state.coloring == COLORINGS[1]:
            return draw.note(
                f"Red, green and blue are the first three principal components of the patches after layer "
                f"{state.layer}, fitted on the sample: patches of one color are alike."
            )
        if state.coloring == COLORINGS[2]:
            if self._passed(state).bases[state.layer - 1] is None:
                return draw.note("A black box has no subspaces; choose principal components.")
            tones = draw.subspace_colors(entry.heads)
            names = "".join(
                f'<span style="--cx-tone:rgb({r},{g},{b})">U{k}</span>' for k, (r, g, b) in enumerate(tones.tolist(), 1)
            )
            return f'<div class="cx-legend">{names}</div>' + draw.note(
                "Each patch has the color of its nearest subspace."
            )
        return ""

    def show_layer(self, state: ImageState) -> dict[Any, Any]:
        """Return what depends on the layer as well."""
        title = draw.heading(state.caption or "Your picture", "Click a patch to look at it more closely.")
        return {
            **self.show_patch(state),
            self.head: title,
            self.legend: self._legend(state),
            self.curves: self._curves(state),
        }

    def _curves(self, state: ImageState) -> str:
        library, changed = self.library, state.changes != Intervention()
        tables = {"this image": library.curves(state.name, state.image, state.changes)}
        if changed:
            tables["before"] = library.curves(state.name, state.image, Intervention())
        tables["sample mean"] = images.reference(library, state.name).table
        caption = (
            "Attention is built to lower Rᶜ, the cost of coding the tokens in the subspaces; ISTA leaves few non-zero "
            "entries. The dotted line is the current layer. Hover for values."
        )
        return draw.heading("Every layer, for this image", caption) + draw.layer_curves(tables, state.layer)

    def show_model(self, state: ImageState) -> dict[Any, Any]:
        """Return what an intervention or another image changes."""
        entry = self.library.entry(state.name)
        depth = state.changes.layers or entry.depth
        state, prediction = replace(state, layer=min(state.layer, depth)), self._prediction(state)
        return {
            **self.show_layer(state),
            self.prediction: prediction,
            self.panel.answer: prediction,
            self.layer: gr.update(maximum=max(depth, 2), value=state.layer),
            **self.panel.show(entry, state.changes, state.scores),
        }

    def _prediction(self, state: ImageState) -> str:
        changed = state.changes != Intervention()
        try:
            found = images.predict(self.library, state.name, state.image, state.changes)
        except UnavailableError:
            return self._reconstruction(state)
        caption = "Probability before → after the intervention." if changed else "The most probable classes."
        return draw.heading("Prediction", caption) + draw.prediction_bars(found, changed)

    def _reconstruction(self, state: ImageState) -> str:
        try:
            found = images.reconstruct(self.library, state.name, state.image)
        except UnavailableError as error:
            return draw.heading("Prediction", f"{error}.")
        urls = [draw.data_url(picture) for picture in found.pictures()[0]]
        caption = f"Patches are removed, and the model fills them in: loss {found.loss:.4f}."
        if state.changes != Intervention():
            caption += " An intervention changes what is shown of the layers, but not this."
        titles = ("original", "masked", "reconstruction")
        return draw.heading("Masked reconstruction", caption) + draw.picture_row(list(zip(urls, titles, strict=True)))

    def show_all(self, state: ImageState) -> dict[Any, Any]:
        """Return everything, for another model."""
        entry, sample = self.library.entry(state.name), images.reference(self.library, state.name)
        pictures = [self._thumbnail(entry, index) for index in range(len(sample.images))]
        return {
            **self.show_model(state),
            self.model: gr.update(value=state.name, choices=self.library.names("vision")),
            self.about: draw.note(f"{entry.subtitle}."),
            self.samples: draw.thumbnails(pictures, sample.labels),
            self.coloring: state.coloring,
        }

    # Events

    def first_state(self, name: str) -> ImageState:
        return start(self.library, name)

    def choose_model(self, state: ImageState | None, name: str) -> dict[Any, Any]:
        """Open another model, on the same picture if it was uploaded."""
        fresh = start(self.library, name)
        if state is not None and state.picture is not None:
            entry = self.library.entry(name)
            image = images.ImageInput.of(entry, state.picture)
            fresh = replace(fresh, image=image, sample=None, picture=state.picture, caption=state.caption)
        return self.show_all(fresh)

    def choose_sample(self, state: ImageState, event: gr.EventData) -> dict[Any, Any]:
        """Show a sample image, with the same intervention."""
        fresh = start(self.library, state.name, number(event, "index", 0, 10_000))
        return self.show_model(replace(fresh, layer=state.layer, coloring=state.coloring, changes=state.changes))

    def choose_file(self, state: ImageState, event: gr.EventData) -> dict[Any, Any]:
        """Show a picture that was dropped, pasted or chosen."""
        picture, entry = read_event(event), self.library.entry(state.name)
        image = images.ImageInput.of(entry, picture)
        fresh = replace(state, image=image, sample=None, picture=images.shrink(picture), caption="Your picture")
        return self.show_model(replace(fresh, patch=middle_patch(entry, image), scores={}))

    def choose_patch(self, state: ImageState, event: gr.EventData) -> dict[Any, Any]:
        """Select a patch."""
        rows, columns = images.grid(self.library.entry(state.name), state.image)
        return self.show_patch(replace(state, patch=number(event, "patch", 0, rows * columns - 1)))

    def choose_layer(self, state: ImageState, layer: float, coloring: str) -> dict[Any, Any]:
        """Select a layer, or another coloring."""
        depth = state.changes.layers or self.library.entry(state.name).depth
        return self.show_layer(replace(state, layer=min(max(1, int(layer)), depth), coloring=coloring))

    # The base class asks for these

    def question(self, state: ImageState) -> Hashable:
        return state.name, state.image.key

    def rank_heads(self, state: ImageState, progress: Callable[[int, int], object]) -> pd.DataFrame:
        return images.important_heads(self.library, state.name, state.image, progress)

    def link_values(self, state: ImageState) -> dict[str, Any]:
        sample = None if state.sample is None else state.sample + 1
        coloring = None if state.coloring == COLORINGS[0] else state.coloring
        return {"sample": sample, "patch": state.patch + 1, "coloring": coloring}

    def read_link(self, entry: Entry, link: Link) -> ImageState:
        count = len(images.reference(self.library, entry.name).images)
        state = start(self.library, entry.name, link_number(link, "sample", 1, count, 1) - 1)
        rows, columns = images.grid(entry, state.image)
        patch = link_number(link, "patch", 1, rows * columns, state.patch + 1) - 1
        return replace(state, patch=patch, coloring=link_choice(link, "coloring", COLORINGS, COLORINGS[0]))

    def _connect(self) -> None:
        hidden: Any = {"show_progress": "hidden", "trigger_mode": "always_last", **QUEUED}
        self.model.input(
            guarded(self.choose_model), [self.state, self.model], self.outputs, show_progress_on=[self.about], **QUEUED
        )
        self.samples.select(guarded(self.choose_sample), [self.state], self.outputs, **hidden)
        self.upload.upload(guarded(self.choose_file), [self.state], self.outputs, **hidden)
        self.picture.select(guarded(self.choose_patch), [self.state], self.patch_outputs, **hidden)
        for control, event in ((self.layer, "input"), (self.coloring, "input")):
            getattr(control, event)(
                guarded(self.choose_layer),
                [self.state, self.layer, self.coloring],
                self.layer_outputs,
                **hidden,
            )
        self.connect_panel(self.code)
