"""The tab where the objective acts on tokens in three dimensions."""

from __future__ import annotations

from typing import Any

import gradio as gr

from ..._chart import BLUE, COLORS, GREEN, ORANGE, PURPLE, Series, line_chart
from .. import draw
from ..playground import METHODS, Play, PlaySettings, play
from .common import guarded, piece

CAPTION = (
    "Tokens are drawn near two or three lines with noise σ. Every layer takes a step that lowers Rᶜ, the cost of "
    "coding them in the lines' subspaces, and then ISTA sets small coordinates to zero, which moves the tokens apart "
    "and keeps R, the cost of coding them all together. So ΔR = R − Rᶜ rises. Move the layer slider and watch."
)
GRADIENT = (
    "A step on Rᶜ alone is not a step on ΔR. The exact gradient shrinks weak directions by a larger share than strong "
    "ones. With the size kept, the tokens gather on fewer and fewer directions: R falls as well, in the end faster "
    "than Rᶜ, and ΔR falls. To see it, choose 90°, the exact gradient, and no ISTA."
)
"""Effect on ΔR of the exact gradient of R^c alone."""


def scene(result: Play, layer: int) -> Any:
    """Return a plotly figure of the lines and of the tokens after a layer."""
    import plotly.graph_objects as go

    z, figure = result.tokens[layer], go.Figure()
    size = float(result.tokens[0].norm(dim=-1).max())
    for number, line in enumerate(result.bases[:, :, 0].tolist()):
        ends = [[-0.25 * size * part, size * part] for part in line]
        color = COLORS[number]
        figure.add_scatter3d(
            x=ends[0],
            y=ends[1],
            z=ends[2],
            mode="lines",
            line={"color": color, "width": 4},
            name=f"U{number + 1}",
            hoverinfo="name",
        )
        own = z[result.labels == number].tolist()
        x, y, height = zip(*own, strict=True) if own else ((), (), ())
        figure.add_scatter3d(
            x=x, y=y, z=height, mode="markers", marker={"color": color, "size": 3.5, "opacity": 0.85},
            name=f"tokens near U{number + 1}", hovertemplate="(%{x:.2f}, %{y:.2f}, %{z:.2f})<extra></extra>",
        )  # fmt: skip
    axis = {"range": [-0.35 * size, size], "showbackground": False, "zeroline": False, "title": ""}
    axis["gridcolor"] = "rgba(128,128,128,.3)"
    camera = {"eye": {"x": 1.15, "y": 1.15, "z": 0.75}}
    figure.update_layout(
        scene={"xaxis": axis, "yaxis": axis, "zaxis": axis, "aspectmode": "cube", "camera": camera},
        margin={"l": 0, "r": 0, "t": 0, "b": 0},
        height=460,
        showlegend=False,
        uirevision="scene",
        paper_bgcolor="rgba(0,0,0,0)",
        font={"color": "#808890"},
    )
    return figure


def charts(result: Play, layer: int) -> str:
    """Return the measures along the layers, with the current one marked."""
    table = result.table
    layers = table["layer"].tolist()

    def series(name: str, column: str, color: str) -> Series:
        return Series(name, layers, table[column].tolist(), color)

    rates = [series("Rᶜ", "compression", BLUE), series("R", "rate", ORANGE), series("ΔR", "reduction", GREEN)]
    shares, angles = [series("non-zero", "nonzero", PURPLE)], [series("angle", "distance", BLUE)]
    parts = [
        line_chart(rates, "Rates", mark=layer),
        line_chart(shares, "Share of non-zero entries", percent=True, from_zero=True, mark=layer),
        line_chart(angles, "Mean angle to the nearest line, degrees", from_zero=True, mark=layer),
    ]
    return f'<div class="cx-charts">{"".join(f"<div>{part}</div>" for part in parts)}</div>'


class PlaygroundTab:
    """Components of the tab; the settings in the browser are its whole state."""

    def __init__(self) -> None:
        default = PlaySettings()
        with gr.Row():
            with gr.Column(scale=3, min_width=280, elem_classes="cx-card"):
                piece(draw.heading("The objective, alive", CAPTION))
                self.subspaces = gr.Radio([2, 3], value=default.subspaces, label="Number of lines", elem_id="cx-lines")
                self.angle = gr.Slider(
                    10, 90, default.angle, step=5, label="Angle between the lines, degrees", elem_id="cx-angle"
                )
                self.sigma = gr.Slider(0, 0.6, default.sigma, step=0.05, label="Noise σ", elem_id="cx-sigma")
                self.tokens = gr.Slider(
                    20, 400, default.tokens, step=10, label="Number of tokens", elem_id="cx-token-count"
                )
                self.method = gr.Radio(
                    list(METHODS), value="attention (MSSA)", label="Compression step", elem_id="cx-method"
                )
                self.step = gr.Slider(
                    0.05, 1, default.step, step=0.05, label="Step size (1: largest safe step)", elem_id="cx-step"
                )
                self.sparsify = gr.Checkbox(True, label="ISTA after every step", elem_id="cx-ista")
                self.threshold = gr.Slider(
                    0, 0.3, default.threshold, step=0.01, label="Threshold ηλ of ISTA", elem_id="cx-threshold"
                )
                self.rescale = gr.Checkbox(
                    True, label="Keep the size of the tokens (as layer norm does)", elem_id="cx-rescale"
                )
            with gr.Column(scale=7, min_width=320, elem_classes="cx-card"):
                self.layer = gr.Slider(0, default.layers, 0, step=1, label="Layer", elem_id="cx-play-layer")
                self.plot = gr.Plot(show_label=False, elem_id="cx-scene")
                self.measures = piece(elem_id="cx-play-charts")
                piece(draw.note(GRADIENT))
        self.controls = [
            self.subspaces, self.angle, self.sigma, self.tokens, self.method, self.step, self.sparsify, self.threshold,
            self.rescale,
        ]  # fmt: skip
        self.outputs: list[Any] = [self.plot, self.measures]
        controls: list[Any] = [*self.controls, self.layer]
        for control in controls:
            event = control.input if hasattr(control, "input") else control.change
            event(
                guarded(self.show),
                [*self.controls, self.layer],
                self.outputs,
                trigger_mode="always_last",
                show_progress="hidden",
                concurrency_id="playground",
            )

    def show(self, *values: Any) -> tuple[Any, str]:
        """Run the layers with the settings and show one of them."""
        subspaces, angle, sigma, tokens, method, step, sparsify, threshold, rescale, layer = values
        settings = PlaySettings(
            subspaces=int(subspaces),
            angle=float(angle),
            sigma=float(sigma),
            tokens=int(tokens),
            method=METHODS.get(method, "mssa"),
            step=float(step),
            sparsify=bool(sparsify),
            threshold=float(threshold),
            rescale=bool(rescale),
        )
        result = play(settings)
        layer = min(max(0, int(layer)), settings.layers)
        return scene(result, layer), charts(result, layer)

    def load(self) -> tuple[Any, str]:
        """Show the tokens before the first layer."""
        result = play(PlaySettings())
        return scene(result, 0), charts(result, 0)
