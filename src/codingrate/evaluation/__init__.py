"""Evaluation beyond a task's own metrics: probes, baselines, COCO and VOC objects, ReaL labels, language models."""

from .bag_of_words import bag_of_words_metrics
from .classification import classify
from .features import Features, extract_features, pixel_features
from .glue import glue_average, score_sentences, sentence_metrics
from .imagenet_real import read_real_labels, real_accuracy
from .language import Candidate, LambadaReport, PerplexityReport, fill_masks, lambada_accuracy, perplexity, sampled_loss
from .masked import MaskedReport, masked_loss
from .ngram import NGram, unigram_cross_entropy
from .objects import CocoReport, Detection, VocReport, coco_precision, voc_overlap
from .picture import confusion_picture
from .probe import ProbeReport, knn_probe, logistic_probe, probe_features, probe_steps
from .reconstruction import ReconstructionReport, own_masks, reconstruct, reconstructed, reconstruction_picture
from .report import ClassAccuracy, ClassificationReport
from .samples import image_batches

__all__ = [
    "Candidate",
    "ClassAccuracy",
    "ClassificationReport",
    "CocoReport",
    "Detection",
    "Features",
    "LambadaReport",
    "MaskedReport",
    "NGram",
    "PerplexityReport",
    "ProbeReport",
    "ReconstructionReport",
    "VocReport",
    "bag_of_words_metrics",
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
    "probe_steps",
    "read_real_labels",
    "real_accuracy",
    "reconstruct",
    "reconstructed",
    "reconstruction_picture",
    "sampled_loss",
    "score_sentences",
    "sentence_metrics",
    "unigram_cross_entropy",
    "voc_overlap",
]
