"""Time what the explorer does on a click against one forward pass of the model."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, count, cycle
from typing import Any

import torch

from codingrate.bench.timing import Progress, Result, medians
from codingrate.inspection import Intervention

MODELS = ("crate-cifar10", "crate-base-patch16-224")
"""Models that are measured if they are there; the second has random weights."""
LIMIT = 3.0
"""Largest time of a click, in forward passes."""


def bench_explorer(names: tuple[str, ...] | None = None, repeats: int = 7, progress: Progress = None) -> Result:
    """Time a click on a patch, a move of the layer slider and every kind of intervention, with all that is drawn.

    Each is the handler that the browser calls, without the network. Every intervention is another one, so that its
    forward pass is not in the cache, and all but the early exit change the first layer, so that no layer is spared.
    `ratio` is the time in units of `forward`, one forward pass of the model for one image.
    """
    from codingrate.explorer.library import Library
    from codingrate.models.pretrained import pretrained_names

    chosen = names or tuple(name for name in MODELS if name in pretrained_names() or name == MODELS[-1])
    result: Result = {}
    for name in chosen:
        library = Library([name])
        result[library.names()[0]] = _measure(library, library.names()[0], repeats, progress)
    return result


def _measure(library: Any, name: str, repeats: int, progress: Progress) -> Result:
    from codingrate.explorer.app import build_tab, require_gradio

    require_gradio()
    from codingrate.explorer.tabs.image import ImageTab, start

    tab = build_tab(lambda: ImageTab(library))
    entry, first = library.entry(name), start(library, name)
    pixels = first.image.pixels(entry)
    rows, columns = (side // entry.model.config.patch_size for side in first.image.shape[1:])
    patches, layers = cycle(range(rows * columns)), cycle(range(1, entry.depth + 1))
    numbers = range(1, entry.heads + 1)
    heads = cycle([tuple((1, head) for head in off) for size in (1, 2, 3) for off in combinations(numbers, size)])
    factors = (1 + number / 1000 for number in count(1))
    atoms, exits = cycle(range(1, entry.model.config.hidden_size + 1)), cycle(range(1, entry.depth))
    tab.show_all(first)

    def forward() -> None:
        with torch.inference_mode():
            entry.model(pixels)

    cases: dict[str, Any] = {
        "forward": forward,
        "patch": lambda: tab.show_patch(replace(first, patch=next(patches))),
        "layer": lambda: tab.choose_layer(first, next(layers), first.coloring),
        "head": lambda: tab.change(first, Intervention(heads=next(heads))),
        "atom": lambda: tab.change(first, Intervention(atoms=((1, next(atoms)),))),
        "sparsity": lambda: tab.change(first, Intervention(sparsity=next(factors))),
        "step size": lambda: tab.change(first, Intervention(step_size=next(factors))),
        "early exit": lambda: tab.change(first, Intervention(layers=next(exits))),
    }
    seconds = medians(cases, repeats, warmup=1, progress=progress)
    ratio = {key: value / seconds["forward"] for key, value in seconds.items()}
    return {"seconds": seconds, "ratio": ratio, "limit": LIMIT}
