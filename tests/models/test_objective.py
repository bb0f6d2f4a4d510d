"""The layers' own objective in the training loss, against what it is made of."""

import pytest
import torch

from codingrate import CrateError, CrateForSelfDistillation, create_model, objective

FIELDS = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 16, "patch_size": 4}


def model_of(**fields):
    torch.manual_seed(0)
    options = {**FIELDS, "num_labels": 5, "objective_weight": 0.7, "objective_layers": "all", **fields}
    return create_model("crate-tiny-patch16-224", **options).double().train()


def images():
    return torch.randn(3, 3, 16, 16, dtype=torch.float64), torch.tensor([0, 4, 2])


def naive(model, kind):
    """The mean over layers, computed from the model's own trace."""
    pixels, _ = images_of(model)
    out = model.eval()(pixels, output_hidden_states=True)
    model.train()
    terms = []
    for index, layer in enumerate(model.crate.layers):
        z, half, sparse = out.hidden_states[index], out.compressed_states[index], out.hidden_states[index + 1]
        start = layer.attention_norm(z) if model.config.skip == "normalized" else z
        bases = torch.stack([torch.linalg.svd(u, full_matrices=False)[0] for u in layer.attention.bases])
        rates = [objective.subspace_coding_rate(x / x.norm(dim=-1, keepdim=True), bases, 0.5) for x in (half, start)]
        ratio = (rates[0] / rates[1]).mean()
        x = layer.sparsifier_norm(half)
        if kind == "layer":
            d = layer.sparsifier.dictionary
            cost = [(0.5 * (x - c @ d.T).square().sum((-2, -1)) + 0.1 * c.abs().sum((-2, -1))) for c in (sparse, x)]
            ratio = (ratio + (cost[0] / cost[1]).mean()) / 2
        if kind == "sparse-rate-reduction":
            value = objective.sparse_rate_reduction(sparse, layer.attention.bases, 0.5, 0.1)
            ratio = -(value / sparse.shape[1]).mean()
        terms.append(ratio)
    return torch.stack(terms).mean()


def images_of(model):
    torch.manual_seed(1)
    return images()


@pytest.mark.parametrize("skip", ["normalized", "residual"])
@pytest.mark.parametrize("kind", ["compression", "layer", "sparse-rate-reduction"])
def test_the_term_is_its_definition_in_value_and_gradient(kind, skip):
    model = model_of(objective=kind, skip=skip)
    pixels, labels = images_of(model)
    out = model(pixels, labels=labels)
    expected = naive(model, kind)
    torch.testing.assert_close(out.objective, expected)
    plain = torch.nn.functional.cross_entropy(out.logits, labels)
    torch.testing.assert_close(out.loss, plain + 0.7 * expected)
    parameters = [p for name, p in model.named_parameters() if "layers" in name and p.requires_grad]
    for ours, theirs in zip(*(torch.autograd.grad(x, parameters, allow_unused=True, retain_graph=True)
                              for x in (out.objective, expected)), strict=True):  # fmt: skip
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


def test_one_random_layer_at_a_time_has_the_mean_of_all_layers_and_follows_the_seed():
    model = model_of()
    pixels, _ = images_of(model)
    whole = model(pixels).objective.item()
    model.config.objective_layers = "one"
    torch.manual_seed(3)
    first = [model(pixels).objective.item() for _ in range(60)]
    torch.manual_seed(3)
    assert [model(pixels).objective.item() for _ in range(60)] == first
    assert len({round(value, 9) for value in first}) == 3, "every layer is drawn, one at a time"
    each = sorted({round(value, 9): value for value in first}.values())
    assert sum(each) / 3 == pytest.approx(whole, rel=1e-9)


def test_there_is_no_term_in_evaluation_nor_without_a_weight():
    model = model_of()
    pixels, labels = images_of(model)
    assert model.eval()(pixels, labels=labels).objective is None
    assert model_of(objective_weight=0.0)(pixels, labels=labels).objective is None


def test_logits_are_those_of_training_without_the_term():
    pixels, _ = images_of(None)
    with_term, without = model_of(), model_of(objective_weight=0.0)
    without.load_state_dict(with_term.state_dict())
    torch.testing.assert_close(with_term(pixels).logits, without(pixels).logits)


def test_padding_does_not_count():
    torch.manual_seed(0)
    model = create_model(
        "crate-bert-medium", hidden_size=24, num_hidden_layers=2, num_attention_heads=3, vocab_size=50,
        objective_weight=1.0, objective_layers="all", objective="layer", dropout=0.0,
    ).double().train()  # fmt: skip
    ids = torch.randint(5, 50, (1, 7))
    padded, mask = torch.cat([ids, torch.full((1, 3), 1)], 1), torch.tensor([[1] * 7 + [0] * 3])
    alone, with_padding = model(ids, torch.ones_like(ids)).objective, model(padded, mask).objective
    torch.testing.assert_close(with_padding, alone)


def test_every_loss_has_the_term():
    torch.manual_seed(0)
    text = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "vocab_size": 50}
    ids = torch.randint(5, 50, (2, 7))
    cases = [
        (create_model("crate-gpt-base", **text), {"input_ids": ids, "labels": ids}),
        (create_model("crate-bert-medium", **text), {"input_ids": ids, "labels": ids}),
        (
            create_model("crate-mae-small", **FIELDS),
            {"pixel_values": torch.randn(2, 3, 16, 16)},
        ),
    ]
    for model, inputs in cases:
        model.train()
        for weight in (0.0, 1.0):
            model.config.objective_weight = weight
            torch.manual_seed(5)
            out = model(**inputs)
            assert (out.objective is not None) == bool(weight)
        out.loss.backward()
        model.config.objective_weight = 1.0
    with pytest.raises(CrateError, match="objective_weight"):
        CrateForSelfDistillation(model_of().config)


def test_a_part_of_an_optimizer_step_adds_its_part_of_the_term():
    model = model_of()
    pixels, labels = images_of(model)
    whole, half = model(pixels, labels=labels), model(pixels, labels=labels, num_items_in_batch=6)
    torch.testing.assert_close(half.loss, whole.loss / 2)
