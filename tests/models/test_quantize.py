"""Weights of eight bits: the rounding is the best for its scale, models keep their answers, and twice is refused."""

import pytest
import torch
import torch.nn.functional as F

from codingrate import CrateError, Run, create_model
from codingrate.models import load_model, quantize
from codingrate.models.quantization import FEW_ROWS, Int8ISTA, Int8Linear
from codingrate.operators import SPARSIFIERS
from codingrate.recipes import load_recipe
from codingrate.tasks import TaskPaths, open_task
from tests.refusals import refused

from . import toys


def test_rounded_weights_are_within_half_a_step_of_the_weights():
    weight, bias = torch.randn(31, 17) * torch.logspace(-3, 3, 31)[:, None], torch.randn(31)
    layer = Int8Linear(weight, bias)
    assert layer.weight.dtype == torch.int8
    step = weight.abs().amax(dim=1, keepdim=True) / 127
    restored = layer(torch.eye(17)) - bias
    assert bool(((restored.mT - weight).abs() <= 0.5001 * step + 1e-6).all())  # 1e-6: subtracting the bias rounds
    assert bool((layer.weight.abs().amax(dim=1) == 127).all())


@pytest.mark.parametrize("rows", [(1,), (1, 1), (2, FEW_ROWS // 2), (5, 7)])
@pytest.mark.parametrize("width", [30, 32, 41])
def test_few_and_many_rows_give_the_same_product(rows, width):
    layer = Int8Linear(torch.randn(37, width), torch.randn(37)).bfloat16()
    x = torch.randn(*rows, width).bfloat16()
    exact = F.linear(x.double(), layer.weight.double() * layer.scale.double()[:, None], layer.bias.double())
    out = layer(x)
    assert out.shape == (*rows, 37)
    assert out.dtype == torch.bfloat16
    assert float((out.double() - exact).norm() / exact.norm()) < 0.01  # bfloat16 rounds by 0.4 %


@pytest.mark.parametrize("name", ["ista", "ista-soft"])
def test_ista_of_eight_bits_is_ista(name):
    ista = SPARSIFIERS.create(name, dim=48, step_size=0.3, sparsity=0.2).eval()
    z = F.layer_norm(torch.randn(53, 48), (48,))
    with torch.no_grad():
        exact, ours = ista(z), Int8ISTA(ista)(z)
    assert float((ours - exact).norm() / exact.norm()) < 0.03  # an error of up to 0.5/127 of the largest entry


def test_a_quantized_language_model_predicts_the_same_tokens_from_a_quarter_of_the_memory():
    run = Run("crate-shakespeare-gpt")
    model, small = run.model(), quantize(run.model())

    def size(module) -> int:
        return sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()])

    assert size(small) < 0.35 * size(model)
    task = run.on_data(None)
    exact, rounded = (task.evaluate(m).metrics["cross_entropy"] for m in (model, small))
    assert exact != rounded
    assert rounded == pytest.approx(exact, rel=0.005)
    prompt = run.processor("ROMEO", return_tensors="pt")["input_ids"]
    assert "ROMEO" in run.processor.decode(small.generate(prompt, max_new_tokens=3)[0])


def test_a_model_is_quantized_once():
    model = quantize(create_model("crate-tiny-patch16-224", image_size=32, num_hidden_layers=2, hidden_size=48))
    assert model(torch.randn(2, 3, 32, 32, dtype=torch.bfloat16)).logits.isfinite().all()
    with pytest.raises(CrateError, match="is quantized already; load it again"):
        quantize(model)


@torch.no_grad()
@pytest.mark.parametrize(
    ("task", "fields"),
    [
        *((task, {}) for task in toys.TASKS),
        ("causal-lm", {"tie_word_embeddings": False}), ("image-classification", {"attention": "mssa-tied"}),
        ("image-classification", {"orthogonality": "parametrize"}), ("masked-lm", {"attention": "tssa"}),
    ],
    ids=str,
)  # fmt: skip
def test_a_quantized_model_is_saved_and_loaded(task, fields, tmp_path):
    given = {k: v.bfloat16() if v.is_floating_point() else v for k, v in toys.inputs(task).items()}
    model = quantize(toys.build(task, **fields))
    model.save_pretrained(tmp_path)
    for again in (load_model(tmp_path), type(model).from_pretrained(tmp_path), Run(tmp_path).model()):
        assert {name: tensor.dtype for name, tensor in again.state_dict().items()} == {
            name: tensor.dtype for name, tensor in model.state_dict().items()
        }
        assert torch.equal(toys.main_output(again(**given)), toys.main_output(model(**given)))
    refused("the model is quantized already", quantize, load_model(tmp_path))


def test_a_quantized_model_is_not_trained(tmp_path):
    model = quantize(toys.build("image-classification", image_size=28, num_channels=1))
    model.save_pretrained(tmp_path / "small")
    changes = {"model.from": str(tmp_path / "small"), "augment.image_size": 28}
    recipe = load_recipe("digits", [f"{key}={value}" for key, value in changes.items()])
    task = open_task(recipe, TaskPaths(source=str(tmp_path / "small")))
    refused("its 8-bit weights cannot be trained; give the model before quantization", task.build_model)
