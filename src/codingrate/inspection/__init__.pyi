from .measure.attention import (
    HeadCatalogue,
    attention_entropy,
    attention_maps,
    head_catalogue,
    projections,
    token_attention,
)
from .measure.interventions import Intervention, intervene, rank_heads, retrace
from .measure.logit_lens import Candidates, candidates, lens
from .measure.predictions import Finding, Prediction, Verdict, judge_training
from .measure.rates import across_training, layerwise, read_metrics
from .measure.sparse_units import Units, units
from .measure.subspaces import principal_cosines, subspace_coherence
from .measure.tracing import (
    ForwardTrace,
    default_layer,
    layer_index,
    layer_indices,
    layer_numbers,
    pca_colors,
    token_heat,
    trace,
)
from .report.inspecting import InspectionReport, Subject, inspect_models
from .report.layers import save_history_figure
from .report.panel import Panel
from .report.summary import Outcome, Sample, Score
from .segment.cuts import Cut, maskcut
from .segment.pictures import (
    ImageAttention,
    Segment,
    attend_images,
    default_side,
    find_objects,
    overlay,
    save_segments,
    square_input,
    stack_pictures,
    write_pictures,
)

__all__ = [
    "Candidates", "Cut", "Finding", "ForwardTrace", "HeadCatalogue", "ImageAttention", "InspectionReport",
    "Intervention", "Outcome", "Panel", "Prediction", "Sample", "Score", "Segment", "Subject", "Units", "Verdict",
    "across_training", "attend_images", "attention_entropy", "attention_maps", "candidates", "default_layer",
    "default_side", "find_objects", "head_catalogue", "inspect_models", "intervene", "judge_training",
    "layer_index", "layer_indices", "layer_numbers", "layerwise", "lens", "maskcut", "overlay", "pca_colors",
    "principal_cosines", "projections", "rank_heads", "read_metrics", "retrace", "save_history_figure", "save_segments",
    "square_input",
    "stack_pictures", "subspace_coherence", "token_attention", "token_heat", "trace", "units",
    "write_pictures",
]  # fmt: skip
