"""Parameters, counted three ways: the published integer, the formula of each family, and the model itself."""

import itertools

import pytest
import torch

from codingrate import create_model, list_models
from codingrate.models import presets
from codingrate.models.counts import count_model, forward_flops

from . import toys

PIXELS = 3 * 16**2


def crate_layers(d, count):
    """Projection, output map and dictionary, the output bias, two LayerNorms."""
    return count * (3 * d**2 + 5 * d)


def black_box_layers(d, count, bias=True):
    """Three projections, output map, the two maps of the MLP, their biases, two LayerNorms."""
    return count * (12 * d**2 + (13 if bias else 10) * d)


def classifier(d, layers, classes=1000, patch=16, side=224):
    pixels, patches = 3 * patch**2, (side // patch) ** 2
    embedding = 2 * pixels + (pixels + 1) * d + 2 * d + (patches + 1) * d + d
    return embedding + crate_layers(d, layers) + 2 * d + classes * (d + 1)


def masked_lm(d, layers, words=50265):
    embedding = words * d + 514 * d + d + 2 * d  # words, positions, one token type, LayerNorm
    return embedding + crate_layers(d, layers) + d**2 + 3 * d + words


def causal_lm(d, layers, words=50304):
    """Without positions, as the published figures count."""
    return words * d + crate_layers(d, layers) + 2 * d


def released_autoencoder(d, layers, patches=196):
    tokens = 2 * d + (patches + 1) * d + (PIXELS + 1) * d  # class and mask token, one table, projection
    return tokens + crate_layers(d, 2 * layers) + 4 * d + PIXELS * (d + 1)


def paper_autoencoder(d, layers, patches=196):
    """No class token, no norms outside the layers, a mask token as wide as a patch."""
    return PIXELS + patches * d + (PIXELS + 1) * d + crate_layers(d, 2 * layers) + PIXELS * (d + 1)


def vit(d, layers=12, bias=True, classes=1000, patch=16):
    embedding = (3 * patch**2 + 1) * d + ((224 // patch) ** 2 + 1) * d + d
    return embedding + black_box_layers(d, layers, bias) + 2 * d + classes * (d + 1)


def vit_autoencoder(d, layers=12, width=None, bias=False, patches=196):
    w = width or d
    encoder = (PIXELS + 1) * d + (patches + 1) * d + d + black_box_layers(d, layers, bias) + 2 * d
    decoder = d * w + w + w + (patches + 1) * w + black_box_layers(w, 8, bias) + 2 * w
    return encoder + decoder + PIXELS * (w + 1)


def bert(d, layers, words=30522):
    """BERT's own vocabulary, 512 positions and two token types."""
    return (words + 512 + 2 + 2) * d + black_box_layers(d, layers) + d**2 + 3 * d + words


def gpt2(d, layers, words=50257):
    return words * d + 1024 * d + black_box_layers(d, layers) + 2 * d


PUBLISHED = {
    "crate-tiny-patch16-224": (6_090_856, classifier(384, 12)),
    "crate-small-patch16-224": (13_116_328, classifier(576, 12)),
    "crate-base-patch16-224": (22_796_008, classifier(768, 12)),
    "crate-large-patch16-224": (77_641_192, classifier(1024, 24)),
    "crate-tiny-patch8-224-in21k": (5_743_250, classifier(192, 12, 21842, patch=8)),
    "crate-small-patch8-224-in21k": (14_118_482, classifier(384, 12, 21842, patch=8)),
    "crate-base-patch8-224-in21k": (38_831_570, classifier(768, 12, 21842, patch=8)),
    "crate-bert-medium": (32_626_265, masked_lm(512, 8)),
    "crate-bert-base": (60_922_713, masked_lm(768, 12)),
    "crate-bert-large": (128_723_033, masked_lm(1024, 24)),
    "vit-tiny-patch16-224": (5_717_416, vit(192, 12)),
    "vit-small-patch16-224": (22_050_664, vit(384, 12)),
    "vit-base-patch16-224": (86_540_008, vit(768, 12, bias=False)),
    "vit-large-patch16-224": (304_326_632, vit(1024, 24)),
    "vit-tiny-patch8-224-in21k": (9_742_419, vit(192, classes=21843, patch=8)),
    "vit-small-patch8-224-in21k": (30_079_827, vit(384, classes=21843, patch=8)),
    "vit-base-patch8-224-in21k": (102_605_139, vit(768, classes=21843, patch=8)),
    "vit-dino-small-patch16": (21_665_664, vit(384, classes=0)),
    "vit-dino-small-patch8": (21_670_272, vit(384, classes=0, patch=8)),
    "vit-dino-base-patch8": (85_807_872, vit(768, classes=0, patch=8)),
    "vit-mae-small": (47_578_240, vit_autoencoder(384, width=512, bias=True)),
    "vit-mae-base": (143_790_336, vit_autoencoder(768)),
    "vit-mae-large": (406_014_720, vit_autoencoder(1024, layers=24)),
    "bert-medium": (41_404_730, bert(512, 8)),
    "bert-base": (109_514_298, bert(768, 12)),
    "bert-large": (335_174_458, bert(1024, 24)),
    "gpt2-small": (64_085_504, gpt2(512, 12)),
    "gpt2-base": (124_439_808, gpt2(768, 12)),
    "gpt2-large": (774_030_080, gpt2(1280, 36)),
}


def parameters(name, **fields):
    """Parameters and frozen tables, which are buffers, by name."""
    with torch.device("meta"):
        model = create_model(name, **fields)
    named = [*model.named_parameters(), *model.named_buffers()]
    assert model.num_parameters() == total(named)
    assert model.num_parameters(only_trainable=True) == total(model.named_parameters())
    return named


def total(named):
    return sum(p.numel() for _, p in named)


def test_published_sizes():
    assert {name: (total(parameters(name)), formula) for name, (_, formula) in PUBLISHED.items()} == {
        name: (published, published) for name, (published, _) in PUBLISHED.items()
    }


PRINTED = {  # the sizes that the paper's tables print, in millions; an entry may be printed in two ways
    "tab:Comparison_with_Sota": {
        "crate-tiny-patch16-224": "6.09", "crate-small-patch16-224": "13.12", "crate-base-patch16-224": "22.80",
        "crate-large-patch16-224": "77.64", "vit-tiny-patch16-224": "5.72", "vit-small-patch16-224": "22.05",
    },
    "tab:model_configs_classification": {
        "crate-tiny-patch16-224": "6.1", "crate-small-patch16-224": "13.1", "crate-base-patch16-224": "22.8",
        "crate-large-patch16-224": "77.6", "vit-tiny-patch16-224": "5.72", "vit-small-patch16-224": "22.05",
        "vit-base-patch16-224": "86.54", "vit-large-patch16-224": "307",
    },
    "tab:autoencode_finetuning_logreg": {
        "crate-mae-small": "25.4", "crate-mae-base": "44.6", "vit-mae-small": "47.6", "vit-mae-base": "143.8",
    },
    "tab:model_configs": {
        "crate-mae-small": "25.4", "crate-mae-base": "44.6", "crate-mae-large": "78.5", "vit-mae-small": "47.5",
        "vit-mae-base": "143.8", "vit-mae-large": "406.0",
    },
    "tab:dino_linear_probe": {
        "crate-dino-small-patch16": "13.12", "crate-dino-base-patch8": "22.80", "vit-dino-small-patch16": "22.05",
        "vit-dino-small-patch8": "22.05",
    },
    "tab:configs-crate-text": {
        "crate-bert-medium": "33", "crate-bert-base": "61", "crate-bert-large": "129", "bert-medium": "41",
        "bert-base": "110", "bert-large": "335", "gpt2-small": "64", "crate-gpt-base": "60", "gpt2-base": "124",
        "crate-gpt-large": "242", "gpt2-large": "774",
    },
    "tab:Comparison_with_VIT_IN21k": {
        "crate-tiny-patch8-224-in21k": "5.74", "crate-small-patch8-224-in21k": "14.12",
        "crate-base-patch8-224-in21k": "38.83", "vit-tiny-patch8-224-in21k": "10.36",
        "vit-base-patch8-224-in21k": "102.61",
    },
}  # fmt: skip
UNEXPLAINED = {  # printed sizes that no count of the model gives; docs/fidelity.md names each
    ("tab:model_configs_classification", "vit-large-patch16-224"): 304.33,
    ("tab:model_configs", "crate-mae-large"): 78.65,
    ("tab:model_configs", "vit-mae-small"): 47.58,
    ("tab:Comparison_with_VIT_IN21k", "vit-tiny-patch8-224-in21k"): 9.74,
}


def printed_count(name):
    """Return the number of parameters in millions by the rule of the paper's tables, which docs/fidelity.md states."""
    if name.startswith("crate-mae-"):  # with a second position table and a linear map that is never used
        d = create_model_on_meta(name).config.hidden_size
        return total(parameters(name, **presets.RELEASED_MAE)) + d**2 + d + 197 * d
    if name.startswith("crate-gpt-"):  # without positions
        return total((key, p) for key, p in parameters(name) if "positions" not in key)
    if "-dino-" in name:  # the classifier of the same width with patch size 16
        size = "base" if "base" in name else "small"
        return total(parameters(f"{name.partition('-')[0]}-{size}-patch16-224"))
    return total(parameters(name))


def create_model_on_meta(name):
    with torch.device("meta"):
        return create_model(name)


def test_the_sizes_that_the_tables_print():
    printed = {(table, name): size for table, rows in PRINTED.items() for name, size in rows.items()}
    counts = {(table, name): printed_count(name) / 1e6 for table, name in printed}
    rounded = {place: f"{counts[place]:.{len(size.partition('.')[2])}f}" for place, size in printed.items()}
    assert {place for place, size in printed.items() if rounded[place] != size} == set(UNEXPLAINED)
    assert {place: round(counts[place], 2) for place in UNEXPLAINED} == UNEXPLAINED


@pytest.mark.parametrize(
    ("size", "d", "layers", "published"),
    [("small", 512, 12, None), ("base", 768, 12, 59_914_752), ("large", 1280, 36, 241_569_280)],
)
def test_causal_sizes_leave_the_position_table_out(size, d, layers, published):
    named = parameters(f"crate-gpt-{size}")
    counted = total((name, p) for name, p in named if "positions" not in name)
    assert counted == causal_lm(d, layers) == (published or counted)
    assert total(named) == counted + 1024 * d


@pytest.mark.parametrize(
    ("size", "d", "published", "trained"),
    [
        ("small", 576, 25_405_824, 25_178_880),
        ("base", 768, 44_638_464, 44_335_872),
        ("large", 1024, 78_654_208, 78_250_752),
    ],
)
def test_autoencoder_sizes_in_both_forms(size, d, published, trained):
    assert total(parameters(f"crate-mae-{size}")) == paper_autoencoder(d, 12)
    named = parameters(f"crate-mae-{size}", **presets.RELEASED_MAE)
    # The published figure counts a map that is never used and a second copy of the frozen table.
    unused, table = d**2 + d, 197 * d
    assert total(named) == released_autoencoder(d, 12) == published - unused - table
    assert total((name, p) for name, p in named if p.requires_grad) == trained - unused


def test_sinusoids_are_counted_but_not_trained():
    frozen = [name for name, p in parameters("crate-bert-base") if not p.requires_grad]
    assert frozen == ["crate.embedding.positions.weight"]
    assert all(p.requires_grad for _, p in parameters("crate-base-patch16-224"))


@pytest.mark.parametrize("name", ["crate-tiny-patch16-224", "crate-bert-base", "vit-mae-base"])
def test_count_model_tells_the_same(name):
    count = count_model(name)
    assert count.parameters == PUBLISHED[name][0]
    assert count.frozen == total((n, p) for n, p in parameters(name) if not p.requires_grad)
    assert count.unit == ("token" if "bert" in name else "image")
    with torch.device("meta"):
        model = create_model(name)
    assert count.flops == forward_flops(model) // (model.config.max_tokens if "bert" in name else 1)


SPARSIFIERS = {"ista": 1, "ista-soft": 1, "prox": 1, "odl": 4 * 4, "mlp": 2 * 4, "none": 0}
"""Products of d × d per token; `odl` takes three with D (d, 4d) and one with D', `mlp` two maps of d × 4d."""


def layer_products(attention, sparsifier, n, d, queries):
    """Multiply-adds of one layer that updates so many of n tokens: maps, pairs of tokens, sparsifier."""
    maps = (3 if attention == "mhsa" else 1) * n * d**2 + queries * d**2
    solved = queries if queries > 1 else 0  # a single row is solved for, the others are multiplied with the inverse
    pairs = {"tssa": 0, "rate-gradient": (n + solved) * d * (d // 3)}.get(attention, 2 * queries * n * d)
    return maps + pairs + SPARSIFIERS[sparsifier] * queries * d**2


def test_operations_of_a_classifier_are_its_products():
    """3 × 2 patches of 147 numbers and a class token; the last layer updates only what is read."""
    n, d, found, products = 7, 15, {}, {}
    for case in itertools.product(
        ["mssa", "mssa-tied", "mhsa", "tssa", "rate-gradient"], SPARSIFIERS, ["class", "mean"]
    ):
        attention, sparsifier, pooling = case
        with torch.device("meta"):
            model = toys.build("image-classification", attention=attention, sparsifier=sparsifier, pooling=pooling)
        last = layer_products(attention, sparsifier, n, d, 1 if pooling == "class" else n)
        products[case] = 6 * 147 * d + layer_products(attention, sparsifier, n, d, n) + last + 5 * d
        found[case] = forward_flops(model) // 2
    assert found == products


@pytest.mark.parametrize("attention", ["mssa", "mhsa"])
def test_operations_of_other_models_are_their_products(attention):
    with torch.device("meta"):
        text = {task: toys.build(task, attention=attention) for task in ("masked-lm", "causal-lm")}
        mirror = toys.build("masked-autoencoding", attention=attention)
        dropping = toys.build(
            "masked-autoencoding", attention=attention, decoder_type="forward", mask_space="drop", mask_ratio=0.65
        )
    n, d = 13, 14
    layers = 2 * layer_products(attention, "ista", n, d, n)
    assert forward_flops(text["causal-lm"]) == 2 * (layers + n * d * 29)
    assert forward_flops(text["masked-lm"]) == 2 * (layers + n * d * (29 + d))
    n, d, kept = 6, 12, 2
    maps = 2 * n * 147 * d
    one = layer_products(attention, "ista", n, d, n)  # g^ℓ has the synthesis in the place of ISTA
    assert forward_flops(mirror) == 2 * (maps + 4 * one)
    encoder = 2 * layer_products(attention, "ista", kept, d, kept)
    assert forward_flops(dropping) == 2 * (maps + encoder + kept * d**2 + 2 * one)


@torch.no_grad()
@pytest.mark.parametrize("sparsifier", ["ista", "mlp", "odl"])
@pytest.mark.parametrize("attention", ["mssa", "mssa-tied", "mhsa", "tssa", "rate-gradient"])
@pytest.mark.parametrize("skip", ["normalized", "residual"])
def test_a_last_layer_for_the_class_token_alone_gives_the_same_logits(attention, sparsifier, skip):
    model = toys.build("image-classification", attention=attention, sparsifier=sparsifier, skip=skip).double().eval()
    pixels = toys.pixels(dtype=torch.float64)
    whole = model(pixels, output_hidden_states=True)
    assert whole.hidden_states[-1].shape[1] > 1
    torch.testing.assert_close(model(pixels).logits, whole.logits, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_every_preset_can_be_counted():
    assert all(count_model(name).parameters > 5_000_000 for name in list_models())
