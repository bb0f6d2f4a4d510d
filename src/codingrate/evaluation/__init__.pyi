from .features import BareFeatures, Features, extract_features, pixel_features
from .glue import bag_of_words_metrics, glue_average, sentence_metrics
from .imagenet_real import match_real_labels, read_real_labels, real_accuracy
from .language import Candidate, LambadaReport, PerplexityReport, fill_masks, lambada_accuracy, next_token_losses

# isort: split
from .language import perplexity, sampled_loss
from .ngram import NGram, unigram_cross_entropy
from .objects import CocoReport, Detection, VocReport, coco_precision, voc_overlap
from .probe import ProbeReport, in_coding_rate_metric, knn_probe, logistic_probe, neighbor_accuracy, probe_features

# isort: split
from .probe import probe_steps

__all__ = [
    "BareFeatures", "Candidate", "CocoReport", "Detection", "Features", "LambadaReport", "NGram", "PerplexityReport",
    "ProbeReport", "VocReport", "bag_of_words_metrics", "coco_precision", "extract_features", "fill_masks",
    "glue_average", "in_coding_rate_metric", "knn_probe", "lambada_accuracy", "logistic_probe", "match_real_labels",
    "neighbor_accuracy", "next_token_losses", "perplexity", "pixel_features", "probe_features", "probe_steps",
    "read_real_labels", "real_accuracy", "sampled_loss", "sentence_metrics", "unigram_cross_entropy", "voc_overlap",
]  # fmt: skip
