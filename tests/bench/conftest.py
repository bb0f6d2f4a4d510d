"""Small models in place of those that a suite measures, and memory that costs no new process to measure."""

from __future__ import annotations

from codingrate.models.presets import create_model

SMALL = {"hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 5, "image_size": 32, "num_labels": 7}
SMALL_TEXT = {
    "hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 5, "vocab_size": 37,
    "max_position_embeddings": 41,
}  # fmt: skip


def shrink(monkeypatch, module, **own):
    """Let a suite build small models, and take 1 MiB for what it measures in a new process."""

    def small(name, **fields):
        sizes = SMALL_TEXT if "gpt" in name or "bert" in name else SMALL
        return create_model(name, **{**fields, **sizes, **own})

    monkeypatch.setattr(module, "create_model", small)
    monkeypatch.setattr(module, "peak_memory", lambda task, arguments: 1.0, raising=False)
