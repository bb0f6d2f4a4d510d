"""The models are transformers models: saved, loaded, tied, compiled, checkpointed like any other."""

import json
import subprocess
import sys
import textwrap

import pytest
import torch
from PIL import Image
from safetensors import safe_open

from codingrate.models import CrateForSelfDistillation

from . import toys

every = pytest.mark.parametrize("task", toys.TASKS)
compiler = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
text = pytest.mark.parametrize("task", ["masked-lm", "causal-lm"])


@every
def test_save_and_load_give_the_same_output(task, tmp_path):
    model, given = toys.build(task).eval(), toys.inputs(task)
    model.save_pretrained(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"config.json", "model.safetensors"} <= names
    assert not any(name.endswith((".bin", ".pt", ".pth")) for name in names)
    assert ("preprocessor_config.json" in names) == ("pixel_values" in given)
    again, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not again.training
    assert again.config.to_diff_dict() == {**model.config.to_diff_dict(), "architectures": [type(model).__name__]}
    assert torch.equal(toys.main_output(again(**given)), toys.main_output(model(**given)))
    for name, parameter in again.named_parameters():
        assert parameter.requires_grad == model.get_parameter(name).requires_grad, name


def test_the_body_can_be_loaded_from_a_task_model(tmp_path):
    model = toys.build("image-classification").eval()
    model.save_pretrained(tmp_path)
    images = toys.pixels()
    body = toys.CrateModel.from_pretrained(tmp_path)
    torch.testing.assert_close(body(images).last_hidden_state, model.crate(images).last_hidden_state)


def test_the_config_survives_json(tmp_path):
    config = toys.vision(step_size=1, attention="tssa", attention_scale=0.3)
    config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "crate"
    again = toys.CrateConfig.from_pretrained(tmp_path)
    assert again.to_dict() == config.to_dict()
    assert again.grid == (3, 2)


@text
def test_a_tied_head_is_the_embedding_itself(task, tmp_path):
    model = toys.build(task)
    words = model.get_input_embeddings().weight
    assert model.get_output_embeddings().weight.data_ptr() == words.data_ptr()
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert "head.weight" not in file.keys()  # noqa: SIM118 (not a mapping)
    again = type(model).from_pretrained(tmp_path)
    assert again.get_output_embeddings().weight is again.get_input_embeddings().weight
    again(**toys.inputs(task)).loss.backward()
    assert again.get_input_embeddings().weight.grad.isfinite().all()


@text
def test_an_untied_head_stays_untied(task, tmp_path):
    model = toys.build(task, tie_word_embeddings=False).eval()
    assert model.get_output_embeddings().weight.data_ptr() != model.get_input_embeddings().weight.data_ptr()
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    given = toys.inputs(task)
    assert torch.equal(again(**given).logits, model(**given).logits)
    assert again.get_output_embeddings().weight is not again.get_input_embeddings().weight


@text
def test_resizing_the_vocabulary_keeps_the_tie(task):
    model = toys.build(task).eval()
    given = toys.inputs(task)
    before = model(**given).logits
    model.resize_token_embeddings(37, mean_resizing=False)
    after = model(**given).logits
    assert model.config.vocab_size == 37
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert after.shape == (3, 11, 37)
    torch.testing.assert_close(after[..., :29], before)


@every
def test_gradient_checkpointing_changes_no_gradient(task):
    model, given = toys.build(task).train(), toys.inputs(task)
    if task == "body":
        given["output_hidden_states"] = True

    def gradients():
        model.zero_grad()
        output = model(**given)
        (output.last_hidden_state.square().mean() if task == "body" else output.loss).backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    expected = gradients()
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        model(**given)
    kept = sum(saved)
    for a, b in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(a, b)
    model.gradient_checkpointing_disable()
    saved.clear()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        model(**given)
    assert kept < sum(saved)  # it did recompute


QUICK = ("image-classification", "causal-lm")  # the other tasks have the same layers


@compiler
@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=() if task in QUICK else pytest.mark.slow) for task in toys.TASKS]
)
def test_compiles_to_one_graph(task):
    torch._dynamo.reset()
    model, given = toys.build(task), toys.inputs(task)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    output, expected = compiled(**given), model(**given)
    torch.testing.assert_close(toys.main_output(output), toys.main_output(expected))
    if task != "body":
        torch.testing.assert_close(output.loss, expected.loss)
        output.loss.backward()
        assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


FAMILIES = {
    "tied": {"attention": "mssa-tied"},
    "tssa": {"attention": "tssa"},
    "gradient": {"attention": "rate-gradient", "orthogonality": "per-head"},
    "derived": {"step": "derived", "learn_step": True},
    "momentum": {"momentum": True, "ista_steps": 2},
    "vit": {"attention": "mhsa", "sparsifier": "mlp", "skip": "residual"},
    "alpha": {"sparsifier": "odl"},
    "soft": {"sparsifier": "ista-soft"},
    "prox": {"sparsifier": "prox"},
    "derived prox": {"sparsifier": "prox", "prox_alpha": None},
    "orthonormal": {"orthogonality": "parametrize"},
    "metric": {"subspace_metric": True},
    "drop": {"drop_path": 0.1, "dropout": 0.1, "patch_dropout": 0.5},
}


@compiler
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_no_family_has_a_graph_break(family, training):
    torch._dynamo.reset()
    model, given = (
        toys.build("image-classification", **FAMILIES[family]).train(training),
        toys.inputs("image-classification"),
    )
    output = torch.compile(model, fullgraph=True, backend="eager")(**given)
    assert output.loss.isfinite()
    if family != "drop" or not training:
        torch.testing.assert_close(output.logits, model(**given).logits)
    output.loss.backward()


@compiler
def test_self_distillation_has_no_graph_break():
    torch._dynamo.reset()
    model = CrateForSelfDistillation(toys.vision(prototypes=11, projection_hidden=9, projection_bottleneck=5))
    views = [toys.pixels().expand(2, -1, -1, -1, -1)]
    output = torch.compile(model, fullgraph=True, backend="eager")(views=views)
    torch.testing.assert_close(output.loss, model(views=views).loss)


@every
def test_bfloat16_runs_and_is_near(task):
    model, given = toys.build(task).eval(), toys.inputs(task)
    exact = toys.main_output(model(**given)).detach()
    low = {k: v.bfloat16() if v.is_floating_point() else v for k, v in given.items()}
    out = toys.main_output(model.bfloat16()(**low)).detach()
    assert out.dtype == torch.bfloat16
    assert out.isfinite().all()
    # eight bits, a few dozen operations deep
    assert float((out.float() - exact).norm() / exact.norm()) < 0.1


@every
def test_loading_in_another_precision(task, tmp_path):
    toys.build(task).save_pretrained(tmp_path)
    model = toys.TASKS[task][0].from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_loading_half_a_checkpoint_initialises_the_rest(tmp_path):
    """A frozen table that is missing comes from its formula, not from chance."""
    model = toys.CrateForMaskedAutoencoding(toys.released_autoencoding())
    state = {k: v for k, v in model.state_dict().items() if "positions" not in k}
    model.save_pretrained(tmp_path, state_dict=state)
    again = toys.CrateForMaskedAutoencoding.from_pretrained(tmp_path)
    assert torch.equal(again.crate.embedding.positions.weight, model.crate.embedding.positions.weight)


@torch.no_grad()
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_pipeline_classifies_an_image(mode, tmp_path):
    from transformers import pipeline

    model = toys.build("image-classification", image_size=28, id2label={i: f"class {i}" for i in range(5)}).eval()
    model.save_pretrained(tmp_path)
    classify = pipeline("image-classification", model=str(tmp_path))
    gradient = torch.arange(40 * 50, dtype=torch.float32).reshape(40, 50).mul(255 / 2000).byte()
    image = Image.fromarray(gradient.numpy()).convert(mode)
    answers = classify(image, top_k=5)
    assert {answer["label"] for answer in answers} == {f"class {i}" for i in range(5)}
    processed = classify.image_processor(image, return_tensors="pt")["pixel_values"]
    assert processed.shape == (1, 3, 28, 28)
    probabilities = model(processed).logits.softmax(-1)[0]
    for answer in answers:
        assert abs(answer["score"] - float(probabilities[int(answer["label"][-1])])) < 1e-6


def test_the_saved_processor_resizes_crops_and_normalizes(tmp_path):
    from transformers import AutoImageProcessor

    toys.build("image-classification", image_size=28).save_pretrained(tmp_path)
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    white = Image.new("RGB", (64, 96), (255, 255, 255))
    pixels = processor(white, return_tensors="pt")["pixel_values"]
    expected = torch.tensor([(1 - m) / s for m, s in ((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))])
    torch.testing.assert_close(pixels, expected[None, :, None, None].expand(1, 3, 28, 28), rtol=0, atol=1e-4)
    # shorter side to 256/224 of the model's, then the center: a border is cut away
    framed = Image.new("RGB", (256, 256), (0, 0, 0))
    framed.paste((255, 255, 255), (12, 12, 244, 244))
    cropped = processor(framed, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(cropped, pixels, rtol=0, atol=0.1)


def test_a_penalty_acts_in_training_only():
    weight = 0.03
    model, given = toys.build("image-classification"), toys.inputs("image-classification")
    plain = model.train()(**given).loss
    model.config.orthogonality, model.config.orthogonality_weight = "penalty", weight
    penalty = 0.0
    for layer in model.crate.layers:
        for matrix in (layer.attention.project.weight.T, layer.sparsifier.dictionary):
            gram = matrix.T @ matrix
            penalty = penalty + ((gram - torch.eye(15)) ** 2).sum()
    torch.testing.assert_close(model(**given).loss, plain + weight * penalty)
    torch.testing.assert_close(model.eval()(**given).loss, plain)
    torch.testing.assert_close(model.orthogonality_penalty(), penalty)


def test_descending_the_penalty_brings_orthogonality():
    model = toys.build("masked-autoencoding")
    before = model.orthogonality()
    assert [row["layer"] for row in before] == [
        "crate.layers.0", "crate.layers.1", "decoder_layers.0", "decoder_layers.1",
    ]  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2, weight_decay=0)
    for _ in range(200):
        optimizer.zero_grad()
        model.orthogonality_penalty().backward()
        optimizer.step()
    for old, new in zip(before, model.orthogonality(), strict=True):
        for key in ("within", "across", "dictionary"):
            assert new[key] < 0.1 * old[key]


def test_orthonormal_models_have_no_gap_and_stay_so(tmp_path):
    model = toys.build("image-classification", orthogonality="parametrize")
    given = toys.inputs("image-classification")

    def gaps(model):
        return [row[key] for row in model.orthogonality() for key in ("within", "across", "dictionary")]

    assert len(gaps(model)) == 6
    assert max(gaps(model)) < 1e-5
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    before = float(model(**given).loss.detach())
    for _ in range(10):
        optimizer.zero_grad()
        model(**given).loss.backward()
        optimizer.step()
    assert float(model(**given).loss.detach()) < before
    assert max(gaps(model)) < 1e-5
    model.eval().save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert again.config.orthogonality == "parametrize"
    assert max(gaps(again)) < 1e-5
    assert torch.equal(again(**given).logits, model(**given).logits)


def test_orthogonality_has_no_entry_for_what_is_not_there():
    rows = toys.build("image-classification", attention="mhsa", sparsifier="mlp").orthogonality()
    assert rows == [{"layer": "crate.layers.0"}, {"layer": "crate.layers.1"}]
    model = toys.build("image-classification", attention="mhsa", sparsifier="mlp")
    assert float(model.orthogonality_penalty()) == 0


AUTO = {
    "body": "AutoModel",
    "image-classification": "AutoModelForImageClassification",
    "masked-autoencoding": "AutoModelForPreTraining",
    "masked-lm": "AutoModelForMaskedLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "causal-lm": "AutoModelForCausalLM",
}
SCRIPT = """
    {first}
    {second}
    from transformers import AutoConfig, AutoImageProcessor, {classes}
    for auto, path, name in {rows}:
        config = AutoConfig.from_pretrained(path)
        assert type(config).__name__ == ("CrateTextConfig" if config.modality == "text" else "CrateImageConfig")
        model = auto.from_pretrained(path)
        assert type(model.config) is type(config) is model.config_class
        assert type(model).__name__ == name, (type(model), name)
        assert type(auto.from_config(model.config)) is type(model)
    processor = AutoImageProcessor.from_pretrained({image!r})
    assert processor.crop_size["height"] == 21 and processor.crop_size["width"] == 14, processor
    print("resolved", len({rows}))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("saved")
    for task in AUTO:
        toys.build(task).save_pretrained(root / task)
    return root


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("import codingrate", "import transformers", marks=pytest.mark.slow, id="codingrate-first"),
        pytest.param("import transformers", "import codingrate", id="transformers-first"),
    ],
)
def test_auto_classes_resolve_in_a_fresh_process(saved, first, second):
    rows = ", ".join(
        f"({auto}, {str(saved / task)!r}, {toys.TASKS[task][0].__name__!r})" for task, auto in AUTO.items()
    )
    script = SCRIPT.format(
        first=first,
        second=second,
        classes=", ".join(AUTO.values()),
        rows=f"[{rows}]",
        image=str(saved / "image-classification"),
    )
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["resolved", "6"]
