"""Parts that several tabs share: errors as one message, numbers from the browser, and the panel of interventions."""

from __future__ import annotations

import functools
import html
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import gradio as gr

from ...errors import CrateError
from ...inspection import Intervention
from ..draw import head_switches, heading
from ..library import Entry
from ..style import BUTTON_SCRIPT

QUEUED: Any = {"concurrency_id": "model"}
"""Events that compute with a model share one queue, so that those of a user are computed in order."""

Scores = dict[tuple[int, int], float]
"""Drop of the predicted probability by (layer, head)."""

F = TypeVar("F", bound=Callable[..., Any])

JSON_CHARACTERS = 20_000
"""Longest text of an intervention that is read."""


def guarded(function: F) -> F:
    """Show a `CrateError` of a handler as one message in the browser, and leave everything else as it is."""

    @functools.wraps(function)
    def handler(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except CrateError as error:
            message = str(error)
            raise gr.Error(html.escape(message[:1].upper() + message[1:]), duration=12, print_exception=False) from None
        except AttributeError:
            if args and args[0] is None:  # the state of a session that was dropped
                raise gr.Error("This page was idle for too long; reload it.", print_exception=False) from None
            raise

    return handler  # type: ignore[return-value]


def piece(value: str = "", script: str | None = None, **options: Any) -> gr.HTML:
    """Return an HTML component without gradio's own padding and handlers."""
    return gr.HTML(value, js_on_load=script, padding=False, apply_default_css=False, **options)


def tab_selector(names: list[str]) -> Callable[[gr.Request], Any]:
    """Return a handler that selects the tab that the page's link names."""

    def select(request: gr.Request) -> Any:
        chosen = request.query_params.get("tab")
        return gr.Tabs(selected=chosen) if chosen in names else gr.skip()

    return select


def number(event: gr.EventData, name: str, low: int, high: int) -> int:
    """Return a number that the browser reported, if it is one and in its range."""
    data = event._data if isinstance(event._data, dict) else {}
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise CrateError(f"{name} is not a number from {low} to {high}; click again")
    return int(value)


def read_changes(text: str, entry: Entry) -> Intervention:
    """Read an intervention from JSON, and refuse what the model does not have."""
    if len(text) > JSON_CHARACTERS:
        raise CrateError(f"the JSON has {len(text):,} characters; the limit is {JSON_CHARACTERS:,}")
    try:
        values = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise CrateError(f"this is not JSON ({error}); paste what the box above it exported") from None
    changes = Intervention.from_dict(values)
    entry.changed(changes)  # refuses what the model does not have
    return changes


def python_call(entry: Entry, changes: Intervention) -> str:
    """Return the Python lines that reproduce an intervention."""
    values = changes.to_dict()
    for name in ("heads", "atoms"):
        if name in values:
            values[name] = [tuple(pair) for pair in values[name]]
    arguments = ", ".join(f"{name}={value!r}" for name, value in values.items())
    lines = ["import codingrate as cr", "", f"run = cr.Run({entry.run.source!r})"]
    return "\n".join([*lines, f"changed = run.intervene({arguments})" if arguments else "# nothing is changed"])


class InterventionPanel:
    """Switches for heads, factors of λ and η, early exit, removed atoms, export and replay."""

    def __init__(self, unit: str = "atom") -> None:
        self.unit = unit
        self.caption = piece(
            heading(
                "Interventions",
                "Change the model and see what follows. A head that is off adds nothing to its layer; λ is the "
                "threshold of sparsity, η the step size of ISTA; an early exit reads the answer after fewer layers.",
            )
        )
        with gr.Row():
            with gr.Column(scale=3, min_width=280):
                self.switches = piece(script=BUTTON_SCRIPT, elem_classes="cx-heads", elem_id=f"cx-switches-{unit}")
                with gr.Row():
                    self.rank = gr.Button("Most important heads", size="sm", min_width=120, elem_id=f"cx-rank-{unit}")
                    self.reset = gr.Button("Reset", size="sm", min_width=80, elem_id=f"cx-reset-{unit}")
                self.ranking = piece(elem_classes="cx-ranking")
            with gr.Column(scale=2, min_width=260):
                self.answer = piece(elem_id=f"cx-answer-{unit}")
            with gr.Column(scale=2, min_width=260):
                options: Any = {"minimum": 0, "maximum": 4, "value": 1, "step": 0.25, "interactive": True}
                self.sparsity = gr.Slider(label="Factor of λ (sparsity)", elem_id=f"cx-lambda-{unit}", **options)
                self.step_size = gr.Slider(label="Factor of η (step size)", elem_id=f"cx-eta-{unit}", **options)
                self.layers = gr.Slider(
                    1, 2, 2, step=1, label="Stop after layer", interactive=True, elem_id=f"cx-exit-{unit}"
                )
                self.removed = piece(script=BUTTON_SCRIPT, elem_id=f"cx-removed-{unit}")
        with gr.Accordion("Export and replay", open=False), gr.Row():
            with gr.Column(min_width=260):
                self.exported = gr.Textbox(
                    label="This state as JSON", lines=2, interactive=False, elem_id=f"cx-export-{unit}"
                )
                self.code = gr.Code(label="The same in Python", language="python", interactive=False, lines=4)
            with gr.Column(min_width=260):
                self.imported = gr.Textbox(label="Replay JSON", lines=2, elem_id=f"cx-import-{unit}")
                self.replay = gr.Button("Replay", size="sm", elem_id=f"cx-replay-{unit}")

    @property
    def outputs(self) -> list[Any]:
        """Components that `show` updates; the tab itself fills `answer` with its prediction."""
        parts = [self.switches, self.sparsity, self.step_size, self.layers, self.removed, self.exported, self.code]
        return [*parts, self.ranking]

    def show(self, entry: Entry, changes: Intervention, scores: Scores) -> dict[Any, Any]:
        """Return the values of all components for an intervention."""
        depth, white = entry.depth, entry.white_box
        chips = "".join(
            f'<button class="cx-switch cx-chip" data-layer="{layer}" data-atom="{atom}" '
            f'title="restore">{self.unit} {atom} of layer {layer} ✕</button>'
            for layer, atom in changes.atoms
        )
        hint = (
            f"Click {'a bar of the sparse code' if self.unit == 'atom' else 'a unit that fires'} to remove it."
            if white
            else "A black box has no λ, η and atoms."
        )
        removed = f'<div class="cx-legend">{chips}</div>' if chips else f'<p class="cx-count">{hint}</p>'
        return {
            self.switches: head_switches(depth, entry.heads, changes, scores),
            self.sparsity: gr.update(value=changes.sparsity, interactive=white),
            self.step_size: gr.update(value=changes.step_size, interactive=white),
            self.layers: gr.update(maximum=max(depth, 2), value=changes.layers or depth, interactive=depth > 1),
            self.removed: removed,
            self.exported: json.dumps(changes.to_dict()),
            self.code: python_call(entry, changes),
            self.ranking: _ranking(scores),
        }

    def connect(self, state: gr.State, outputs: list[Any], change: Callable[..., Any]) -> None:
        """Call `change(state, intervention)` for every change; it checks what the model has."""

        def toggle(current: Any, event: gr.EventData) -> Any:
            pair = number(event, "layer", 1, 10_000), number(event, "head", 1, 10_000)
            heads = set(current.changes.heads) ^ {pair}
            return change(current, replace(current.changes, heads=tuple(heads)))

        def restore(current: Any, event: gr.EventData) -> Any:
            pair = number(event, "layer", 1, 10_000), number(event, "atom", 1, 10**6)
            return change(current, replace(current.changes, atoms=tuple(set(current.changes.atoms) - {pair})))

        def scale(current: Any, sparsity: float, step_size: float, layers: float) -> Any:
            return change(current, replace(current.changes, sparsity=sparsity, step_size=step_size, layers=int(layers)))

        def clear(current: Any) -> Any:
            return change(current, Intervention())

        def replay(current: Any, text: str) -> Any:
            return change(current, text or "")

        options: Any = {"outputs": outputs, "show_progress": "hidden", "trigger_mode": "multiple", **QUEUED}
        factors = [self.sparsity, self.step_size, self.layers]
        self.switches.select(guarded(toggle), [state], **options)
        self.removed.select(guarded(restore), [state], **options)
        for slider in factors:
            slider.input(guarded(scale), [state, *factors], **{**options, "trigger_mode": "always_last"})
        self.reset.click(guarded(clear), [state], **options)
        self.replay.click(guarded(replay), [state, self.imported], **options)


def _ranking(scores: Scores) -> str:
    """Return a sentence about the heads that matter most."""
    if not scores:
        return ""
    best = sorted(scores.items(), key=lambda item: -item[1])[:3]
    words = ", ".join(f"layer {layer} head {head} (−{100 * drop:.1f} points)" for (layer, head), drop in best)
    return f'<p class="cx-count">Switched off alone, these lower the predicted probability most: {words}.</p>'
