"""Mutants of the operators: attention, sparsifiers, the mirror of a layer."""

from .mutant import mutants

DROPOUT = "tests/models/test_dropout.py"
CONTRACT = "tests/operators/test_contract.py tests/operators/test_attention.py"
MUTANTS = [
    *mutants(
        "operators/attention.py",
        CONTRACT,
        {
            "self.head_dim**-0.5 if scale is None": "self.head_dim**-1.0 if scale is None",
            "pairs = keys <= queries if causal": "pairs = keys >= queries if causal",
            "return pairs | (keys == queries)": "return pairs",
            "pairs = pairs & mask[:, None, None, :]": "pairs = mask[:, None, None, :]",
            "scale=1.0 if scale is None": "scale=0.5 if scale is None",
            "self.eps**2)).to": "self.eps)).to",
            "real.cumsum(-1)[:, -n:] if causal else real.sum(-1, keepdim=True)": "real.sum(-1, keepdim=True)",
            "heads = matrix.unflatten(0, (self.num_heads, self.head_dim))": (
                "heads = matrix.unflatten(0, (self.head_dim, self.num_heads))"
            ),
            "return -super().output_matrix()": "return super().output_matrix()",
            "    def output_matrix(self) -> Tensor:\n        return self.subspaces()\n": (
                "    def output_matrix(self) -> Tensor:\n        return self.subspaces().mT\n"
            ),
            "self.subspaces().mT.to(out.dtype)) * length *": "self.subspaces().mT.to(out.dtype)) *",
            "out = rows - beta * (out @ gram)": "out = rows + beta * (out @ gram)",
            "(w[..., :, None] * w[..., None, :]).cumsum(dim=2)": "(w[..., :, None] * w[..., None, :])",
            "w = value if mask is None else value * mask[:, None, :, None].to(value.dtype)": "w = value",
            "F.linear(F.normalize(z, dim=-1), self": "F.linear(z, self",
        },
    ),
    *mutants(
        "operators/attention.py",
        "tests/operators/test_rate_gradient.py",
        {
            "gram = beta * gram\n": "gram = beta**2 * gram\n",
            "* -self.log_step.to(out.dtype).exp()": "* -self.log_step.to(out.dtype)",
            "sums = total + (": "sums = (",
            '"cpu" if z.is_meta else z.device.type, enabled=False)': '"cpu" if z.is_meta else z.device.type)',
            "keepdim=True)).clamp(min=1.0)": "keepdim=True)).clamp(max=1.0)",
        },
    ),
    *mutants(
        "operators/attention.py",
        CONTRACT,
        {
            "torch.arange(1, n + 1, device=z.device)": "torch.arange(2, n + 2, device=z.device)",
            "(-membership * w / (1": "(membership * w / (1",
            "(self._sum_tokens(membership) + 1e-8)": "(self._sum_tokens(membership) + 1e-2)",
            "(share.sum(-1) * self.temperature).softmax(dim=1)": "(share.sum(-1) * self.temperature).softmax(dim=2)",
            "square = w.square() * real": "square = w.square()",
            "(mask.cumsum(-1) - 1).clamp(min=0)": "mask.cumsum(-1).clamp(min=0, max=0)",
            "query, key, value = (self.split(x)": "key, query, value = (self.split(x)",
            "else w @ self.metric, w, w": "else w @ self.metric.mT, w, w",
            "(images[:-1] - images[-1]).mT, images[-1]": "images[:-1].mT, images[-1]",
        },
    ),
    *mutants(
        "operators/attention.py",
        DROPOUT,
        {
            "causal, dropout = self.causal, self.dropout.p if self.training else 0.0": (
                "causal, dropout = self.causal, 0.0"
            ),
            "return F.dropout(attention, dropout) @ value, attention": "return attention @ value, attention",
            "= self.dropout(self.combine_heads(self.join(out), z, mask, past))": (
                "= self.combine_heads(self.join(out), z, mask, past)"
            ),
        },
    ),
    *mutants(
        "operators/attention.py",
        "tests/models/test_rotary.py",
        {
            "[first * cos - second * sin, second * cos + first * sin]": (
                "[first * cos + second * sin, second * cos - first * sin]"
            ),
            "speed = 1e4 **": "speed = 1e3 **",
            "(torch.arange(n, device=x.device) + start)[:, None]": "torch.arange(n, device=x.device)[:, None]",
            "rotate(query, past), rotate(key)": "rotate(query), rotate(key)",
        },
    ),
    *mutants(
        "operators/attention.py",
        "tests/inspection/test_interventions.py",
        {"out = out * self.head_mask": "out = out"},
    ),
    *mutants(
        "operators/sparsify.py",
        "tests/operators/test_ista.py",
        {"torch.lerp(eye, fused, factor)": "torch.lerp(fused, eye, factor)"},
    ),
    *mutants(
        "operators/sparsify.py",
        "tests/operators/test_contract.py tests/operators/test_ista.py",
        {
            "return -self.step_size * self.sparsity": "return -self.sparsity",
            "(work - gram)).to": "(work + gram)).to",
            "return matrix @ (grads[0] + grads[0].mT)": "return matrix @ grads[0]",
            "((F.linear(z, atoms) - z) @ atoms)": "((F.linear(z, atoms) + z) @ atoms)",
            "key = (d._version, d.data_ptr()": "key = (0, d.data_ptr()",
            "!= key or _differ(*self._cached[1:3]):": "!= key:",
            "F.softshrink(step, self.step_size * self.sparsity)": "F.softshrink(step, self.sparsity)",
            "growth = 1 + 4 / (9 * (1 + alpha))": "growth = 1 + 4 / (9 * alpha)",
            "residual = F.linear(codes, atoms) - x": "residual = F.linear(codes, atoms) - codes",
            "for _ in range(self.steps - 1):": "for _ in range(self.steps - 2):",
            "F.relu(first - eta * (residual": "F.relu(first + eta * (residual",
            '"tanh" if activation == "gelu-tanh" else "none"': '"none"',
        },
    ),
    *mutants(
        "operators/sparsify.py",
        DROPOUT,
        {
            "return self.dropout(self.contract(F.gelu(self.expand(z), approximate=self.approximate)))": (
                "return self.contract(F.gelu(self.expand(z), approximate=self.approximate))"
            ),
        },
    ),
    *mutants(
        "theory/inverse.py",
        "tests/theory/test_inverse.py",
        {
            "return y - self.attention(y)": "return y + self.attention(y)",
            "codes @ (self.dictionary if adjoint else self.dictionary.mT)": "codes @ self.dictionary",
            "sample.codes if signed else sample.codes.abs()": "sample.codes",
        },
    ),
    *mutants(
        "_attention_mass.py",
        "tests/test_attention_mass.py",
        {"running > 1 - mass + slack": "running > mass + slack", "MASS = 0.6": "MASS = 0.7"},
    ),
]
