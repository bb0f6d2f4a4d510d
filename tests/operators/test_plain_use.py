"""Operators and losses in a plain PyTorch program: nothing else is needed, and they learn."""

import subprocess
import sys

import torch
from torch import nn

from codingrate.objective import RateReductionLoss
from codingrate.operators import ISTA, MSSA

ALONE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"transformers", "sklearn", "scipy", "pandas", "pydantic", "PIL", "datasets", "yaml"}:
            raise ImportError(f"{name} is refused")
sys.meta_path.insert(0, Refuse())
import torch
before = set(sys.modules)
from codingrate import objective, operators
z = operators.MSSA(6, 2)(torch.randn(1, 3, 6))
objective.RateReductionLoss(2)(operators.ISTA(6)(z), torch.tensor([[0, 1, 0]])).backward()
own = {"codingrate", "torch", *sys.stdlib_module_names}
print(sorted(name for name in {name.split(".")[0] for name in set(sys.modules) - before} - own if name == "numpy"))
"""


def test_objective_and_operators_need_torch_only():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


class Block(nn.Module):
    """A layer of a plain ViT whose attention and MLP are the operators of the paper."""

    def __init__(self, d):
        super().__init__()
        self.norms, self.mssa, self.ista = nn.ModuleList([nn.LayerNorm(d), nn.LayerNorm(d)]), MSSA(d, 4), ISTA(d)

    def forward(self, z):
        z = z + self.mssa(self.norms[0](z))
        return self.ista(self.norms[1](z))


def test_a_plain_vit_learns():
    torch.manual_seed(0)
    x, labels = torch.randn(64, 9, 16), torch.arange(64) % 2
    x[:, 3] += 2.0 * (2 * labels[:, None] - 1)  # the class is in one of nine patches
    vit, head = nn.Sequential(Block(16), Block(16)), nn.Linear(16, 2)
    optimizer = torch.optim.Adam([*vit.parameters(), *head.parameters()], 1e-2)
    for _ in range(40):
        loss = nn.functional.cross_entropy(head(vit(x).mean(1)), labels)
        loss.backward(), optimizer.step(), optimizer.zero_grad()
    assert float((head(vit(x).mean(1)).argmax(-1) == labels).float().mean()) > 0.9


def test_a_plain_loop_learns_features_of_classes_at_right_angles():
    torch.manual_seed(0)
    labels = torch.arange(96) % 3
    x = torch.randn(96, 16) + 2 * torch.randn(3, 16)[labels] + 3  # all in one direction at first
    encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))

    def overlap():
        z = nn.functional.normalize(encoder(x).detach(), dim=-1)
        return float((z @ z.mT).abs()[labels[:, None] != labels].mean())

    before = overlap()
    criterion, optimizer = RateReductionLoss(num_classes=3), torch.optim.Adam(encoder.parameters(), 1e-2)
    for _ in range(60):
        criterion(encoder(x), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert overlap() < 0.2 < 0.5 < before
