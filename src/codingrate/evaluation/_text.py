"""What every pass over text shares: token ids, and models that can read them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data import TokenFile
from ..errors import CrateError
from ..models import CrateForCausalLM, CrateForMaskedLM, CrateForSequenceClassification
from ..models.base import CratePreTrainedModel

_REMEDIES = {
    CrateForCausalLM: "measure it with perplexity",
    CrateForMaskedLM: "measure it with masked_loss",
    CrateForSequenceClassification: "measure it with score_sentences",
}


def token_ids(tokens: TokenFile | NDArray[Any]) -> NDArray[Any]:
    """The ids (n,), mapped, not read, where they are a file."""
    ids = tokens.array() if isinstance(tokens, TokenFile) else np.asarray(tokens)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise CrateError(f"tokens are {ids.dtype} of shape {ids.shape}; expected integer ids (n,)")
    return ids


def check_sizes(**sizes: int | None) -> None:
    """Refuse sizes that make no sense."""
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise CrateError(f"{name} is {value}; it must be positive")


def check_ids(model: nn.Module, ids: Tensor) -> Tensor:
    """The ids, if the model has an embedding for each."""
    words = getattr(getattr(model, "config", None), "vocab_size", None)
    if words is not None and int(ids.max()) >= words:
        raise CrateError(
            f"token id {int(ids.max())} is outside the model's vocabulary of {words}; "
            "take the tokenizer the model was trained with"
        )
    return ids


def expect(model: nn.Module, kind: type[CratePreTrainedModel], what: str) -> None:
    """Refuse one of our models that is not of a kind; any other model is taken at its word."""
    if isinstance(model, CratePreTrainedModel) and not isinstance(model, kind):
        remedy = next((f"; {remedy}" for other, remedy in _REMEDIES.items() if isinstance(model, other)), "")
        raise CrateError(f"{what} needs a {kind.__name__}, not a {type(model).__name__}{remedy}")


def room(model: nn.Module, block: int | None) -> int:
    """How many tokens are read at a time: `block`, if the model can, or as many as it can."""
    config: Any = getattr(model, "config", None)
    most: Any = getattr(config, "max_tokens", None) or getattr(config, "max_position_embeddings", None)
    if block is None and most is None:
        raise CrateError("the model does not say how many tokens it reads; give block")
    if block is not None and (block < 2 or (most is not None and block > most)):
        raise CrateError(f"block is {block}; it must lie between 2 and the {most} tokens the model reads")
    return int(most if block is None else block)


def expect_causal(model: nn.Module, block: int | None) -> int:
    """The block of a causal language model."""
    expect(model, CrateForCausalLM, "perplexity")
    return room(model, block)
