"""The loss on masked tokens against one forward pass under the same masks."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from codingrate.data import Masking, TextDocuments, load_tokenizer, mask_own_tokens, pack_text
from codingrate.evaluation import masked_loss
from tests.models import toys
from tests.refusals import refused

BLOCK = 13


def test_hidden_tokens_are_those_of_training(tmp_path):
    tokenizer = load_tokenizer("bytes", kind="masked")
    tokens = pack_text(TextDocuments(["hidden words, " * 9]), tokenizer, folder=tmp_path, special_tokens="bos_eos")
    model = toys.build("masked-lm", vocab_size=261).double()
    reports = [masked_loss(model, tokens, tokenizer, batch_size=size) for size in (1, 4, 99)]
    ids = torch.from_numpy(tokens.array().astype(np.int64))
    ids = ids[: len(ids) // BLOCK * BLOCK].view(-1, BLOCK)
    hidden, labels = mask_own_tokens(ids, Masking.of(tokenizer))
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=hidden).logits
    loss = float(F.cross_entropy(logits.flatten(0, 1), labels.flatten()))
    right = float((logits.argmax(-1) == labels).sum() / (labels >= 0).sum())
    for report in reports:
        assert report.cross_entropy == pytest.approx(loss, rel=1e-10)
        assert report.accuracy == pytest.approx(right)
        assert (report.tokens, report.block) == (int((labels >= 0).sum()), BLOCK)
    assert masked_loss(model, tokens, tokenizer, seed=1).cross_entropy != pytest.approx(loss)
    refused("needs a CrateForMaskedLM, not a CrateForCausalLM; measure it with perplexity",
            masked_loss, toys.build("causal-lm", vocab_size=261), tokens, tokenizer)  # fmt: skip
    refused("12 tokens are too few for a block of 13", masked_loss, model, tokens, tokenizer, limit=12)
    refused("has no mask token", masked_loss, model, tokens, load_tokenizer("bytes"))
