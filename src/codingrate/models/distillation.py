"""Self-distillation without labels, DINO (paper 4.1.3): a student learns from an average of itself."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn
from transformers import initialization as init

from ..errors import CrateError
from .base import CrateModel, CratePreTrainedModel
from .classifier import CrateForImageClassification
from .config import CrateConfig
from .outputs import CrateDistillationOutput, CrateModelOutput, CrateTaskOutput
from .projection import ProjectionHead, ProjectionLayer, Prototypes


def teacher_log_probabilities(logits: Tensor, center: Tensor, temperature: float) -> Tensor:
    """log softmax((t − c)/τ_t) of teacher logits t (..., P), without gradient; at least in float32."""
    work = torch.promote_types(logits.dtype, torch.float32)
    return F.log_softmax((logits.detach().to(work) - center.to(work)) / temperature, dim=-1)


def distillation_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    center: Tensor,
    student_temperature: float = 0.1,
    teacher_temperature: float = 0.04,
) -> Tensor:
    """Mean cross-entropy over all pairs of a teacher view t and another student view s (eq. dino-objective).

    −1/((TS − T)B) Σ_{t ≠ s} Σ_b ⟨p_tb, log q_sb⟩,  p = softmax((t − c)/τ_t),  q = softmax(s/τ_s)
    (student_logits (S, B, P), teacher_logits (T, B, P), center (P,))

    The teacher's views are the student's first T ≤ S. Summed over s first, the pairs cost no more than one:
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
    """Mean entropy of softmax((t − c)/τ_t) over views and images, (): 0 and log P are the two ways to collapse."""
    log_p = teacher_log_probabilities(teacher_logits, center, temperature)
    return -(log_p.exp() * log_p).sum(-1).sum() / max(math.prod(log_p.shape[:-1]), 1)


class Branch(nn.Module):
    """Student or teacher: f^proj ∘ f, the body, LayerNorm on the token a classifier would read, and the head."""

    def __init__(self, config: CrateConfig) -> None:
        super().__init__()
        self.config = config
        self.crate = CrateModel(config)
        # Where the paper's norm sits is not documented; here it is the classifier's, between pooling and the head.
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.head_norm_eps) if config.head_norm else nn.Identity()
        self.head = ProjectionHead(config)

    def features(self, pixel_values: Tensor) -> Tensor:
        """What the head reads of images, (batch, d)."""
        return self.pool(self.body(pixel_values).last_hidden_state)

    def body(self, pixel_values: Tensor | None, **options: Any) -> CrateModelOutput:
        """The body's output; of its last layer no more than is read, unless the inside is asked for."""
        num_queries = 1 if self.config.pooling == "class" else None
        return cast(CrateModelOutput, self.crate(pixel_values, return_dict=True, num_queries=num_queries, **options))

    def pool(self, last_hidden_state: Tensor | None) -> Tensor:
        """The class token, or the mean of all tokens, normalised: (batch, d)."""
        z = cast(Tensor, last_hidden_state)
        return self.norm(z[:, 0] if self.config.pooling == "class" else z.mean(dim=1))

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Images (batch, channels, height, width) to logits (batch, P)."""
        return self.head(self.features(pixel_values))


class CrateForSelfDistillation(CratePreTrainedModel):
    """Two branches of one shape: the student is trained, the teacher is its moving average and sees no gradient.

    A training step is loss = model(views=…).loss, a step of the optimizer, then `update_center` with the step's teacher
    logits and `update_teacher`. The teacher is what is kept: `crate` is its body and `features` are its own.
    """

    center: Tensor

    def __init__(self, config: CrateConfig) -> None:
        self.expect_modality(config, "vision")
        super().__init__(config)
        self.student = Branch(config)
        self.teacher = Branch(config)
        self.register_buffer("center", torch.zeros(self.student.head.outputs))
        self.post_init()
        self.train(self.training)

    @property
    def crate(self) -> CrateModel:
        """The teacher's body, for whatever looks into a model."""
        return self.teacher.crate

    def train(self, mode: bool = True) -> CrateForSelfDistillation:
        """The teacher stays frozen and in eval mode, also after a loader has put other tensors into it."""
        super().train(mode)
        self.teacher.train(False).requires_grad_(False)
        return self

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, ProjectionLayer):
            init.trunc_normal_(module.weight, std=self.config.initializer_range)
            init.zeros_(module.bias)
        elif isinstance(module, Prototypes):
            init.kaiming_uniform_(module.direction, a=math.sqrt(5))  # what nn.Linear does by itself
            init.ones_(module.gain)
        elif isinstance(module, CrateForSelfDistillation):
            init.zeros_(module.center)
            for mine, theirs in module.pairs():
                init.copy_(mine, theirs)
        else:
            super()._init_weights(module)

    def pairs(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Each parameter of the teacher with the student's."""
        return list(zip(self.teacher.parameters(), self.student.parameters(), strict=True))

    def forward(
        self,
        pixel_values: Tensor | None = None,
        views: Sequence[Tensor] | None = None,
        student_temperature: float = 0.1,
        teacher_temperature: float = 0.04,
        output_attentions: bool | None = None,
        output_hidden_states: bool | Collection[int] | None = None,
        return_dict: bool | None = None,
        **_: Any,
    ) -> CrateDistillationOutput | CrateTaskOutput | tuple[Any, ...]:
        """The loss of `views`, or the teacher's features of `pixel_values` as `logits` (batch, d).

        Each of the views is a group of equal size (views, batch, channels, height, width), the global ones first. The
        student sees every group in one pass of its body and all of them in one pass of its head; the teacher sees the
        first group. The centre and the teacher are not updated here.
        """
        named = self.crate.returns_dict(return_dict)
        if views is None:
            body = self.teacher.body(
                pixel_values, output_attentions=output_attentions, output_hidden_states=output_hidden_states
            )
            read = CrateTaskOutput(
                logits=self.teacher.pool(body.last_hidden_state),
                hidden_states=body.hidden_states,
                compressed_states=body.compressed_states,
                attentions=body.attentions,
            )
            return read if named else read.to_tuple()
        batch = _check_views(views)
        features = torch.cat([self.student.features(group.flatten(0, 1)) for group in views])
        student = self.student.head(features).unflatten(0, (sum(map(len, views)), batch))
        with torch.no_grad():
            teacher = self.teacher(views[0].flatten(0, 1)).unflatten(0, (len(views[0]), batch))
        loss = distillation_loss(student, teacher, self.center, student_temperature, teacher_temperature)
        output = CrateDistillationOutput(
            loss=self.regularized(loss),
            student_logits=student,
            teacher_logits=teacher,
            entropy=teacher_entropy(teacher, self.center, teacher_temperature),
        )
        return output if named else output.to_tuple()

    def features(self, pixel_values: Tensor) -> Tensor:
        """The teacher's class token after the norm, (batch, d): for probes and neighbours."""
        return self.teacher.features(pixel_values)

    def orthogonality_penalty(self) -> Tensor:
        """That of the student's body, the one that is trained."""
        return self.student.crate.orthogonality_penalty()

    @torch.no_grad()
    def update_center(self, teacher_logits: Tensor, momentum: float = 0.9) -> None:
        """c ← mc + (1 − m) mean(t) over the views and images of teacher logits (..., P), of all processes.

        Call it after the step's loss, which takes the centre of the steps before.
        """
        rows = teacher_logits.detach().to(torch.promote_types(self.center.dtype, torch.float32)).flatten(0, -2)
        total = torch.cat([rows.sum(0), rows.new_tensor([len(rows)])])  # the sum and how many it is of
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(total)
        if float(total[-1]):
            self.center.lerp_((total[:-1] / total[-1]).to(self.center.dtype), 1 - momentum)

    @torch.no_grad()
    def update_teacher(self, momentum: float) -> None:
        """θ_t ← mθ_t + (1 − m)θ_s, every parameter (eq. after dino-objective). Call it after the optimizer's step."""
        mine, theirs = zip(*self.pairs(), strict=True)
        torch._foreach_lerp_(mine, theirs, 1 - momentum)

    def as_backbone(self, weights: Mapping[str, Tensor] | None = None) -> CrateForImageClassification:
        """A copy of the teacher without its head: a classifier of no classes, for evaluation and inspection.

        `weights` stand for the state dict where that is sharded over processes.
        """
        config = copy.deepcopy(self.config)
        config.num_labels = 0
        model = CrateForImageClassification(config)
        cast(nn.Module, model).to(self.device, self.dtype)
        state = self.state_dict() if weights is None else weights
        names = {name: name.replace("teacher.norm.", "head_norm.").removeprefix("teacher.") for name in state}
        kept = ("teacher.crate.", "teacher.norm.")
        model.load_state_dict({names[name]: tensor for name, tensor in state.items() if name.startswith(kept)})
        return model.eval()

    def start_from(self, backbone: CrateForImageClassification) -> None:
        """Give both branches the body and norm of a model of the same config; the head stays as it is."""
        for branch in (self.student, self.teacher):
            branch.crate.load_state_dict(backbone.crate.state_dict())
            branch.norm.load_state_dict(backbone.head_norm.state_dict())


def _check_views(views: Sequence[Tensor]) -> int:
    """The batch size of the groups, or what is wrong with them."""
    shapes = [tuple(group.shape) for group in views]
    if not shapes or any(len(shape) != 5 for shape in shapes) or len({shape[1] for shape in shapes}) != 1:
        raise CrateError(f"views have shapes {shapes}; expected groups (views, batch, channels, height, width)")
    if sum(shape[0] for shape in shapes) < 2 or not shapes[0][0]:
        raise CrateError(f"views have shapes {shapes}; expected two views or more, the first group for the teacher")
    return int(shapes[0][1])
