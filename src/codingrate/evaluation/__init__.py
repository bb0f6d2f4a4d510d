"""Evaluation beyond a task's own metrics: probes, baselines, COCO and VOC objects, ReaL labels, language models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _lazy

if TYPE_CHECKING:
    from .bag_of_words import bag_of_words_metrics
    from .features import Features, extract_features, pixel_features
    from .glue import glue_average, sentence_metrics
    from .imagenet_real import read_real_labels, real_accuracy
    from .language import (
        Candidate,
        LambadaReport,
        PerplexityReport,
        fill_masks,
        lambada_accuracy,
        next_token_losses,
        perplexity,
        sampled_loss,
    )
    from .ngram import NGram, unigram_cross_entropy
    from .objects import CocoReport, Detection, VocReport, coco_precision, voc_overlap
    from .probe import ProbeReport, knn_probe, logistic_probe, probe_features, probe_steps

__all__ = [
    "Candidate",
    "CocoReport",
    "Detection",
    "Features",
    "LambadaReport",
    "NGram",
    "PerplexityReport",
    "ProbeReport",
    "VocReport",
    "bag_of_words_metrics",
    "coco_precision",
    "extract_features",
    "fill_masks",
    "glue_average",
    "knn_probe",
    "lambada_accuracy",
    "logistic_probe",
    "next_token_losses",
    "perplexity",
    "pixel_features",
    "probe_features",
    "probe_steps",
    "read_real_labels",
    "real_accuracy",
    "sampled_loss",
    "sentence_metrics",
    "unigram_cross_entropy",
    "voc_overlap",
]

_HOMES = {
    "bag_of_words": ("bag_of_words_metrics",),
    "features": ("Features", "extract_features", "pixel_features"),
    "glue": ("glue_average", "sentence_metrics"),
    "imagenet_real": ("read_real_labels", "real_accuracy"),
    "language": (
        "Candidate",
        "LambadaReport",
        "PerplexityReport",
        "fill_masks",
        "lambada_accuracy",
        "next_token_losses",
        "perplexity",
        "sampled_loss",
    ),
    "ngram": ("NGram", "unigram_cross_entropy"),
    "objects": ("CocoReport", "Detection", "VocReport", "coco_precision", "voc_overlap"),
    "probe": ("ProbeReport", "knn_probe", "logistic_probe", "probe_features", "probe_steps"),
}
__getattr__, __dir__ = _lazy.attach(__name__, {name: home for home, names in _HOMES.items() for name in names})
