"""Evaluation: what a trained model gets right, measured one way for every run; a file per task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _lazy

if TYPE_CHECKING:
    from .classification import classify
    from .coco import CocoReport, Detection, coco_precision
    from .features import Features, extract_features, pixel_features
    from .glue import glue_average, save_scores, score_sentences, sentence_metrics
    from .knn import KnnResult, knn_probe
    from .lambada import LambadaReport, lambada_accuracy
    from .language import PerplexityReport, perplexity, sampled_loss
    from .logistic import LogisticResult, logistic_probe
    from .masked import Candidate, MaskedReport, fill_masks, masked_loss
    from .ngram import NGram, unigram_cross_entropy
    from .picture import confusion_picture
    from .probe import ProbeReport, probe_features
    from .real import read_real_labels, real_accuracy
    from .reconstruction import (
        ReconstructionReport,
        own_masks,
        reconstruct,
        reconstructed,
        reconstruction_picture,
    )
    from .report import ClassAccuracy, ClassificationReport
    from .samples import image_batches
    from .voc import VocReport, voc_overlap
    from .words import bag_of_words

__all__ = [
    "Candidate",
    "ClassAccuracy",
    "ClassificationReport",
    "CocoReport",
    "Detection",
    "Features",
    "KnnResult",
    "LambadaReport",
    "LogisticResult",
    "MaskedReport",
    "NGram",
    "PerplexityReport",
    "ProbeReport",
    "ReconstructionReport",
    "VocReport",
    "bag_of_words",
    "classify",
    "coco_precision",
    "confusion_picture",
    "extract_features",
    "fill_masks",
    "glue_average",
    "image_batches",
    "knn_probe",
    "lambada_accuracy",
    "logistic_probe",
    "masked_loss",
    "own_masks",
    "perplexity",
    "pixel_features",
    "probe_features",
    "read_real_labels",
    "real_accuracy",
    "reconstruct",
    "reconstructed",
    "reconstruction_picture",
    "sampled_loss",
    "save_scores",
    "score_sentences",
    "sentence_metrics",
    "unigram_cross_entropy",
    "voc_overlap",
]

_HOMES = {
    "classification": ("classify",),
    "coco": ("CocoReport", "Detection", "coco_precision"),
    "features": ("Features", "extract_features", "pixel_features"),
    "glue": ("glue_average", "save_scores", "score_sentences", "sentence_metrics"),
    "knn": ("KnnResult", "knn_probe"),
    "lambada": ("LambadaReport", "lambada_accuracy"),
    "language": ("PerplexityReport", "perplexity", "sampled_loss"),
    "logistic": ("LogisticResult", "logistic_probe"),
    "masked": ("Candidate", "MaskedReport", "fill_masks", "masked_loss"),
    "ngram": ("NGram", "unigram_cross_entropy"),
    "picture": ("confusion_picture",),
    "probe": ("ProbeReport", "probe_features"),
    "real": ("read_real_labels", "real_accuracy"),
    "reconstruction": (
        "ReconstructionReport",
        "own_masks",
        "reconstruct",
        "reconstructed",
        "reconstruction_picture",
    ),
    "report": ("ClassAccuracy", "ClassificationReport"),
    "samples": ("image_batches",),
    "voc": ("VocReport", "voc_overlap"),
    "words": ("bag_of_words",),
}
__getattr__, __dir__ = _lazy.attach(__name__, {name: home for home, names in _HOMES.items() for name in names})
