"""The bench of CRATE-GPT: both rivals write to full length, and every figure is filled."""

import pytest

from codingrate import CrateError
from codingrate.bench import bench_gpt, gpt
from codingrate.cli.bench import show

SMALL = {
    "hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 5, "vocab_size": 37,
    "max_position_embeddings": 41,
}  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch):
    build = gpt.create_model
    monkeypatch.setattr(gpt, "create_model", lambda name, **fields: build(name, **{**SMALL, **fields}))


def test_every_figure_is_filled(capsys):
    turns = []
    result = bench_gpt(new_tokens=7, batch=2, length=11, repeats=2, progress=lambda: turns.append(1))
    assert len(turns) == 6
    for mode in ("decoding", "training"):
        seconds = result[mode]["seconds"]
        assert result[mode]["speedup"] == seconds["gpt2"] / seconds["ours"]
    held = result["cache_bytes_per_token"]
    assert held["gpt2"] == 2 * held["ours"] == 2 * 3 * 30 * 4
    assert result["parameters"]["ours"] < result["parameters"]["gpt2"]
    assert result["cache_difference"] < 1e-5
    show({"gpt": result, "machine": {"threads": 1}})
    printed = capsys.readouterr().out
    assert "transformers GPT-2" in printed
    assert "faster" in printed


def test_both_rivals_write_every_token():
    for model in gpt._rivals("crate-gpt-base").values():
        text = gpt._runner(model.eval(), "decoding", gpt.torch.full((1, 3), 36), None, 19)()
        assert text.shape == (1, 22)


def test_another_kind_of_model_is_refused():
    with pytest.raises(CrateError, match=r"^crate-bert-base: the gpt bench takes a causal language model"):
        gpt._rivals("crate-bert-base")
