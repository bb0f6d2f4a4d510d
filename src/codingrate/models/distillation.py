"""Self-distillation without labels, DINO (paper 4.1.3): a student learns from a moving average of itself."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn
from transformers import initialization as init

from ..errors import CrateError
from .base import CrateModel, CratePreTrainedModel
from .classifier import CrateForImageClassification
from .config import CrateConfig
from .outputs import CrateDistillationOutput, CrateTaskOutput, can_return_tuple


def teacher_log_probabilities(logits: Tensor, center: Tensor, temperature: float) -> Tensor:
    """Compute log softmax((t − c)/τ_t) of teacher logits t (..., P), without gradient and at least in float32."""
    work = torch.promote_types(logits.dtype, torch.float32)
    return F.log_softmax((logits.detach().to(work) - center.to(work)) / temperature, dim=-1)


def distillation_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    center: Tensor,
    student_temperature: float = 0.1,
    teacher_temperature: float = 0.04,
) -> Tensor:
    """Compute the mean cross-entropy over all pairs of a teacher view t and another student view s.

    −1/((TS − T)B) Σ_{t ≠ s} Σ_b ⟨p_tb, log q_sb⟩,  p = softmax((t − c)/τ_t),  q = softmax(s/τ_s)
    (eq. dino-objective; student_logits (S, B, P), teacher_logits (T, B, P), center (P,))

    The views of the teacher are the first T ≤ S of the student. Summed over s first, all pairs cost no more than one:
    Σ_{t ≠ s} ⟨p_t, log q_s⟩ = ⟨Σ_t p_t, Σ_s log q_s⟩ − Σ_t ⟨p_t, log q_t⟩. An empty batch gives zero.
    """
    (S, batch, _), T = student_logits.shape, len(teacher_logits)
    if teacher_logits.shape[1:] != student_logits.shape[1:] or not 0 < T <= S or S < 2:
        raise CrateError(
            f"student_logits {tuple(student_logits.shape)} and teacher_logits {tuple(teacher_logits.shape)} "
            "do not fit; expected (views, batch, P) each, at least two of the student and no more of the teacher"
        )
    work = torch.promote_types(student_logits.dtype, torch.float32)
    log_q = F.log_softmax(student_logits.to(work) / student_temperature, dim=-1)
    p = teacher_log_probabilities(teacher_logits, center, teacher_temperature).exp()
    matches = (p.sum(0) * log_q.sum(0)).sum() - (p * log_q[:T]).sum()
    return -matches / (T * (S - 1) * max(batch, 1))


def teacher_entropy(teacher_logits: Tensor, center: Tensor, temperature: float) -> Tensor:
    """Compute the mean entropy of softmax((t − c)/τ_t) over views and images, (); collapse gives 0 or log P."""
    log_p = teacher_log_probabilities(teacher_logits, center, temperature)
    return -(log_p.exp() * log_p).sum(-1).sum() / max(math.prod(log_p.shape[:-1]), 1)


class Prototypes(nn.Module):
    """A linear map without bias whose rows have a direction and a separate length (weight normalization).

    x ↦ x Cᵀ with rows c_j = g_j v_j/‖v_j‖   (x (..., b), `direction` v (P, b), `gain` g (P, 1))

    g starts at 1. With `normalize_prototypes` it stays 1 (a buffer), so that scores of unit vectors are cosines.
    """

    def __init__(self, config: CrateConfig) -> None:
        super().__init__()
        self.config = config
        self.direction = nn.Parameter(torch.empty(config.prototypes, config.projection_bottleneck))
        self.gain = (nn.Buffer if config.normalize_prototypes else nn.Parameter)(torch.empty(config.prototypes, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.gain * F.normalize(self.direction, dim=1))

    def extra_repr(self) -> str:
        return f"prototypes={self.config.prototypes}, bottleneck={self.config.projection_bottleneck}"


class ProjectionLayer(nn.Linear):
    """A linear map of the projection head; initialized like DINO's, with truncated normal weights and zero bias."""


class ProjectionHead(nn.Module):
    """f^proj: features of a token (..., d) to the logits (..., P) that student and teacher compare.

    Released DINO: y = W₃ GELU(W₂ GELU(W₁z + b₁) + b₂) + b₃ of widths h, h, b, then C y/‖y‖ with `Prototypes` C.
    Paper (eq. dino_head): W₃ ReLU(W₂ ReLU(W₁z + b₁) + b₂) + b₃ of width d throughout, so that P = d. The paper says
    that it follows DINO, so its equation is probably a simplification, and the released form is the default.
    """

    def __init__(self, config: CrateConfig) -> None:
        super().__init__()
        d, released = config.hidden_size, config.projection_head == "released"
        hidden, out = (config.projection_hidden, config.projection_bottleneck) if released else (d, d)
        activation = nn.GELU if released else nn.ReLU
        first, second, third = (ProjectionLayer(*widths) for widths in ((d, hidden), (hidden, hidden), (hidden, out)))
        self.layers = nn.Sequential(first, activation(), second, activation(), third)
        self.prototypes = Prototypes(config) if released else None
        self.outputs = config.prototypes if released else d

    def forward(self, features: Tensor) -> Tensor:
        y = self.layers(features)
        return y if self.prototypes is None else self.prototypes(F.normalize(y, dim=-1))

    def last_layer(self) -> nn.Module:
        """Return the map that gives the logits, prototypes or W₃, which DINO freezes at first."""
        return self.layers[-1] if self.prototypes is None else self.prototypes


class Branch(nn.Module):
    """Student or teacher, f^proj ∘ f: the body, LayerNorm on the token that a classifier would read, and the head."""

    def __init__(self, config: CrateConfig) -> None:
        super().__init__()
        self.crate = CrateModel(config)
        # The paper does not say where its norm is; here it is where the classifier has it, before the head.
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.head_norm_eps) if config.head_norm else nn.Identity()
        self.head = ProjectionHead(config)

    def features(self, pixel_values: Tensor) -> Tensor:
        """Compute the input of the head, (batch, d)."""
        return self.norm(self.crate.pooled(pixel_values)[1])

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Map images (batch, channels, height, width) to logits (batch, P)."""
        return self.head(self.features(pixel_values))


class CrateForSelfDistillation(CratePreTrainedModel):
    """Two branches of one shape: the student is trained, the teacher is its moving average without gradient.

    A training step is loss = model(views=…).loss, a step of the optimizer, then `update_center` with the teacher logits
    of the step and `update_teacher`. The teacher is the result: `crate` is its body, and `features` are its features.
    """

    accepts_loss_kwargs = False  # its loss is a mean over views, so transformers' Trainer averages it over batches
    rules = (
        (lambda c: c.objective_weight, "self-distillation has no loss of single layers; set objective_weight to 0"),
    )

    def __init__(self, config: CrateConfig) -> None:
        super().__init__(config)
        self.student = Branch(config)
        self.teacher = Branch(config)
        self.center = nn.Buffer(torch.zeros(self.student.head.outputs))
        self.post_init()
        self.train(self.training)

    @property
    def crate(self) -> CrateModel:
        """The body of the teacher, for evaluation and inspection."""
        return self.teacher.crate

    def train(self, mode: bool = True) -> CrateForSelfDistillation:
        """Set the mode of the student; the teacher stays frozen and in eval mode, also after weights were loaded."""
        super().train(mode)
        self.teacher.train(False).requires_grad_(False)
        return self

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, ProjectionLayer):
            init.trunc_normal_(module.weight, std=self.config.initializer_range)
            init.zeros_(module.bias)
        elif isinstance(module, Prototypes):
            init.kaiming_uniform_(module.direction, a=math.sqrt(5))  # the default of nn.Linear
            init.ones_(module.gain)
        elif isinstance(module, CrateForSelfDistillation):
            init.zeros_(module.center)
            for teacher, student in module.pairs():
                init.copy_(teacher, student)
        else:
            super()._init_weights(module)

    def pairs(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Return each parameter of the teacher with that of the student."""
        return list(zip(self.teacher.parameters(), self.student.parameters(), strict=True))

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        views: Sequence[Tensor] | None = None,
        student_temperature: float = 0.1,
        teacher_temperature: float = 0.04,
        **kwargs: Any,
    ) -> CrateDistillationOutput | CrateTaskOutput:
        """Compute the loss of `views`, or the teacher's features of `pixel_values` as `logits` (batch, d).

        Each group of views has one size, (views, batch, channels, height, width), the global views first. The student's
        body processes one group at a time and its head all of them at once; the teacher processes the first group.
        This updates neither the center nor the teacher. Other keywords, such as `output_hidden_states`, are those of
        the body.
        """
        if views is None:
            body, z = self.teacher.crate.pooled(pixel_values, **kwargs)
            return CrateTaskOutput.from_body(body, self.teacher.norm(z))
        batch = _check_views(views)
        features = torch.cat([self.student.features(group.flatten(0, 1)) for group in views])
        student = self.student.head(features).unflatten(0, (sum(map(len, views)), batch))
        with torch.no_grad():
            teacher = self.teacher(views[0].flatten(0, 1)).unflatten(0, (len(views[0]), batch))
        loss = distillation_loss(student, teacher, self.center, student_temperature, teacher_temperature)
        entropy = teacher_entropy(teacher, self.center, teacher_temperature)
        return CrateDistillationOutput(self.regularized(loss), student, teacher, entropy)

    def features(self, pixel_values: Tensor) -> Tensor:
        """Compute the teacher's class token after the norm, (batch, d), which probes use as features."""
        return self.teacher.features(pixel_values)

    def orthogonality_penalty(self) -> Tensor:
        """Compute the penalty of the student's body, the one that is trained."""
        return self.student.crate.orthogonality_penalty()

    @torch.no_grad()
    def update_center(self, teacher_logits: Tensor, momentum: float = 0.9) -> None:
        """Set c ← mc + (1 − m) mean(t) over the views and images of teacher logits (..., P) of all processes.

        Call it after the loss of the step, which uses the center of the steps before.
        """
        logits = teacher_logits.detach().to(torch.promote_types(self.center.dtype, torch.float32)).flatten(0, -2)
        total = torch.cat([logits.sum(0), logits.new_full((1,), len(logits))])  # the sum and the number of its terms
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(total)
        count = total[-1]  # stays on the device, so that nothing waits for it
        center = self.center.lerp((total[:-1] / count.clamp(min=1)).to(self.center.dtype), 1 - momentum)
        self.center.copy_(torch.where(count > 0, center, self.center))

    @torch.no_grad()
    def update_teacher(self, momentum: float) -> None:
        """Set θ_t ← mθ_t + (1 − m)θ_s for every parameter (eq. after dino-objective), after the optimizer's step."""
        teacher, student = zip(*self.pairs(), strict=True)
        torch._foreach_lerp_(teacher, student, 1 - momentum)

    def as_backbone(self, weights: Mapping[str, Tensor] | None = None) -> CrateForImageClassification:
        """Copy the teacher without its head into a classifier without classes, for evaluation and inspection.

        `weights` replaces the state dict of this model if that is sharded over processes.
        """
        config = copy.deepcopy(self.config)
        config.num_labels = 0
        model = CrateForImageClassification(config)
        cast(nn.Module, model).to(self.device, self.dtype)
        state = self.state_dict() if weights is None else weights
        names = {name: name.replace("teacher.norm.", "head_norm.").removeprefix("teacher.") for name in state}
        kept = ("teacher.crate.", "teacher.norm.")
        model.load_state_dict({names[name]: tensor for name, tensor in state.items() if name.startswith(kept)})
        model.preprocessing = self.preprocessing
        return model.eval()

    def start_from(self, backbone: CrateForImageClassification) -> None:
        """Copy body and norm of a model of the same config into both branches; the heads do not change."""
        for branch in (self.student, self.teacher):
            branch.crate.load_state_dict(backbone.crate.state_dict())
            branch.norm.load_state_dict(backbone.head_norm.state_dict())


def _check_views(views: Sequence[Tensor]) -> int:
    """Return the batch size of the groups; raise an error if their shapes do not fit."""
    shapes = [tuple(group.shape) for group in views]
    if not shapes or any(len(shape) != 5 for shape in shapes) or len({shape[1] for shape in shapes}) != 1:
        raise CrateError(f"views have shapes {shapes}; expected groups (views, batch, channels, height, width)")
    if sum(shape[0] for shape in shapes) < 2 or not shapes[0][0]:
        raise CrateError(f"views have shapes {shapes}; expected two views or more, the first group for the teacher")
    return int(shapes[0][1])
