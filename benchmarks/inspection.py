"""Cost of inspection in units of the forward passes that it needs: layer-wise measures, features, probes, MaskCut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from codingrate._state import seeded
from codingrate.bench.timing import Progress, Result, medians
from codingrate.data import Augment
from codingrate.evaluation import extract_features, knn_probe, logistic_probe
from codingrate.inspection import layerwise, maskcut, trace
from codingrate.inspection.measure.rates import layer_measures
from codingrate.models.base import CratePreTrainedModel
from codingrate.models.presets import create_model

from .samples import gaussian_features, photographs

LIMITS = (3.0, 6.0)
"""Largest time of the layer-wise measures without and with controls, in forward passes."""
PROBED = (800, 200)
"""Numbers of training and test images whose features are probed."""
MEASURES = (
    "compression", "compression_normalized", "alignment", "reduction_normalized", "effective_rank", "blocks", "lasso",
    "hoyer",
)  # fmt: skip


def bench_inspection(
    name: str = "crate-tiny-patch16-224",
    batch: int = 16,
    repeats: int = 5,
    probed: tuple[int, int] = PROBED,
    progress: Progress = None,
) -> Result:
    """Time what inspection and evaluation do with a batch of images, and one forward pass of the same images.

    `trace` is the forward pass that hands out all tokens, and `layerwise` includes it. `features` reads photographs
    from JPEG files. The probes of `probed` features of ten Gaussian classes are compared with forward passes of as many
    images, MaskCut with that of one image. `measures` are the seconds of single layer-wise measures over all layers,
    without what they share; their sum is therefore larger than that of `layerwise`.
    """
    with seeded(0):
        model = create_model(name).eval()
        sides = model.config.image_sides
        pixels = torch.randn(batch, model.config.num_channels, *sides)
    images, augment = photographs(batch), Augment(image_size=sides[0])
    grid = (sides[0] // model.config.patch_size, sides[1] // model.config.patch_size)
    passed = trace(model, pixels)
    patches = passed.tokens[-2][0, -grid[0] * grid[1] :].numpy()
    train, test = gaussian_features(*probed, model.config.hidden_size)
    cases: dict[str, tuple[int, Callable[[], object]]] = {  # number of images, function
        "forward": (batch, torch.no_grad()(lambda: model(pixels))),
        "trace": (batch, lambda: trace(model, pixels)),
        "layerwise": (batch, lambda: layerwise(model, [pixels])),
        "controls": (batch, lambda: layerwise(model, [pixels], controls=True)),
        "features": (batch, lambda: extract_features(model, images, augment, batch_size=batch)),
        "knn": (sum(probed), lambda: knn_probe(train, test)),
        "logistic": (sum(probed), lambda: logistic_probe(train, test)),
        "maskcut": (1, lambda: maskcut(patches, grid)),
    }
    # Probes come after the models: threads of scikit-learn's libraries stay busy for a while and would slow these down.
    models = ("forward", "trace", "layerwise", "controls", "features")
    seconds: dict[str, float] = {}
    for group in (models, cases.keys() - models):
        seconds |= medians({key: cases[key][1] for key in cases if key in group}, repeats, 1, progress)
    per_image = {key: seconds[key] / count for key, (count, _) in cases.items()}
    measures = medians({key: _measure(model, passed, key) for key in MEASURES}, repeats, warmup=1, progress=progress)
    return {
        "model": name,
        "batch": batch,
        "probed": list(probed),
        "seconds": seconds,
        "images": {key: count for key, (count, _) in cases.items()},
        "ratio": {key: value / per_image["forward"] for key, value in per_image.items()},
        "measures": {key: value / seconds["forward"] for key, value in measures.items()},
        "limits": list(LIMITS),
    }


def _measure(model: CratePreTrainedModel, passed: Any, name: str) -> Callable[[], None]:
    def run() -> None:
        for layer in range(model.config.num_hidden_layers):
            layer_measures(passed, layer, 0.5, only=(name,))

    return run
