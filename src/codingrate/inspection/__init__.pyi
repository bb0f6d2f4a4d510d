from .measure.attention import (
    HeadCatalogue,
    attention_entropy,
    attention_maps,
    head_catalogue,
    projections,
    token_attention,
)
from .measure.logit_lens import Candidates, candidates, lens
from .measure.rates import layerwise
from .measure.sparse_units import Units, units
from .measure.subspaces import principal_cosines, subspace_coherence
from .measure.tracing import ForwardTrace, default_layer, layer_index, layer_indices, pca_colors, token_heat, trace
from .measure.training_history import across_training, describe_training, read_metrics
from .report.inspecting import InspectionReport, Subject, inspect_models
from .report.layers import save_history_figure
from .report.panel import Panel
from .segment.attention_masks import ImageAttention, attend_images
from .segment.cuts import Cut, maskcut
from .segment.objects import Segment, default_side, find_objects, overlay, square_input

__all__ = [
    "Candidates", "Cut", "ForwardTrace", "HeadCatalogue", "ImageAttention", "InspectionReport", "Panel", "Segment",
    "Subject", "Units", "across_training", "attend_images", "attention_entropy", "attention_maps", "candidates",
    "default_layer", "default_side", "describe_training", "find_objects", "head_catalogue", "inspect_models",
    "layer_index", "layer_indices", "layerwise", "lens", "maskcut", "overlay", "pca_colors", "principal_cosines",
    "projections", "read_metrics", "save_history_figure", "square_input", "subspace_coherence", "token_attention",
    "token_heat", "trace", "units",
]  # fmt: skip
