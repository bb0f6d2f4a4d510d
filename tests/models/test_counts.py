"""Parameters, counted three ways: the published integer, the formula of each family, and the model itself."""

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


def vit(d, layers, bias=True, classes=1000, patches=196):
    embedding = (PIXELS + 1) * d + (patches + 1) * d + d
    return embedding + black_box_layers(d, layers, bias) + 2 * d + classes * (d + 1)


def vit_autoencoder(d, patches=196):
    encoder = (PIXELS + 1) * d + (patches + 1) * d + d + black_box_layers(d, 12, bias=False) + 2 * d
    decoder = d**2 + d + d + (patches + 1) * d + black_box_layers(d, 8, bias=False) + 2 * d
    return encoder + decoder + PIXELS * (d + 1)


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
    "vit-mae-base": (143_790_336, vit_autoencoder(768)),
    "gpt2-base": (124_439_808, gpt2(768, 12)),
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


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name):
    published, formula = PUBLISHED[name]
    assert formula == published
    assert total(parameters(name)) == published


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
    maps = {"mssa": 1, "mssa-tied": 1, "tssa": 1, "mhsa": 3}[attention] * n * d**2 + queries * d**2
    pairs = 0 if attention == "tssa" else 2 * queries * n * d
    return maps + pairs + SPARSIFIERS[sparsifier] * queries * d**2


@pytest.mark.parametrize("sparsifier", SPARSIFIERS)
@pytest.mark.parametrize("attention", ["mssa", "mssa-tied", "mhsa", "tssa"])
@pytest.mark.parametrize("pooling", ["class", "mean"])
def test_operations_of_a_classifier_are_its_products(attention, sparsifier, pooling):
    """3 × 2 patches of 147 numbers and a class token; the last layer updates only what is read."""
    with torch.device("meta"):
        model = toys.build("image-classification", attention=attention, sparsifier=sparsifier, pooling=pooling)
    n, d = 7, 15
    last = layer_products(attention, sparsifier, n, d, 1 if pooling == "class" else n)
    products = 6 * 147 * d + layer_products(attention, sparsifier, n, d, n) + last + 5 * d
    assert forward_flops(model) == 2 * products


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
@pytest.mark.parametrize("attention", ["mssa", "mssa-tied", "mhsa", "tssa"])
@pytest.mark.parametrize("skip", ["normalized", "residual"])
def test_a_last_layer_for_the_class_token_alone_gives_the_same_logits(attention, sparsifier, skip):
    model = toys.build("image-classification", attention=attention, sparsifier=sparsifier, skip=skip).double().eval()
    pixels = toys.pixels(dtype=torch.float64)
    whole = model(pixels, output_hidden_states=True)
    assert whole.hidden_states[-1].shape[1] > 1
    torch.testing.assert_close(model(pixels).logits, whole.logits, rtol=1e-12, atol=1e-12)


def test_every_preset_can_be_counted():
    assert all(count_model(name).parameters > 5_000_000 for name in list_models())
