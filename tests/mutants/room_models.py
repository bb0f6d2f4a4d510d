"""Mutants of the models: layers, embeddings, initialization, heads, self-distillation, caches."""

from .mutant import mutants

PSEUDOCODE = "tests/models/test_against_pseudocode.py tests/models/test_outputs.py"
EMBEDDING = "tests/models/test_embedding.py"
POOLING = "tests/models/test_pooling.py"
MUTANTS = [
    *mutants(
        "models/layers.py",
        PSEUDOCODE,
        {
            "compressed = start + self.kept(self.step(start, update))": (
                "compressed = start - self.kept(self.step(start, update))"
            ),
            "return start - self.step(start, update), synthesized": (
                "return start + self.step(start, update), synthesized"
            ),
            "synthesized = self.synthesis(x)": "synthesized = self.synthesis(z)",
            'self.normalized_skip = config.skip == "normalized"\n        self.norm_first': (
                "self.normalized_skip = False\n        self.norm_first"
            ),
        },
    ),
    *mutants(
        "models/embedding.py",
        EMBEDDING,
        {
            "(-math.log(1e4) / dim)": "(-math.log(1e3) / dim)",
            "[b.sin(), b.cos(), a.sin(), a.cos()]": "[a.sin(), a.cos(), b.sin(), b.cos()]",
            "F.pad(patches, (0, 0, 1, 0))": "F.pad(patches, (0, 0, 0, 1))",
            "blocks.permute(0, 2, 4, 3, 5, 1)": "blocks.permute(0, 2, 4, 5, 3, 1)",
            "return config.position_scale * sinusoids": "return sinusoids",
            "kept = max(1, round(count * (1 - self.config.patch_dropout)))": "kept = count",
            "argsort(dim=1)[:, :kept].sort(dim=1).values": "argsort(dim=1)[:, :kept]",
            "rows = F.pad(drawn + front, (front, 0))": "rows = F.pad(drawn, (front, 0))",
            "F.max_pool2d(convolution(features), 2).relu()": "F.avg_pool2d(convolution(features), 2).relu()",
            "return features.flatten(2).mT": "return features.transpose(2, 3).flatten(2).mT",
        },
    ),
    *mutants(
        "models/layers.py",
        "tests/models/test_recomputing.py",
        {
            "or output is source:": "or False:",
            "if same and tensor.is_contiguous()": "if False",
            "else outer_pack(tensor)": "else tensor",
        },
    ),
    *mutants(
        "models/layers.py",
        "tests/models/test_steps.py",
        {
            "else self.logit.sigmoid()) * (update - start)": "else self.logit.sigmoid()) * update",
            "math.log(self.share / (1 - self.share))": "math.log(self.share)",
            "z + self.momentum * (z - previous)": "z + self.momentum * z",
            "(count_tokens(z, mask)[:, :num_queries],)": "(count_tokens(z, None)[:, :num_queries],)",
        },
    ),
    *mutants("models/layers.py", EMBEDDING, {"(x if self.normalized_skip else compressed)": "compressed"}),
    *mutants(
        "models/embedding.py",
        "tests/models/test_released.py",
        {'mode="bicubic"': 'mode="bilinear"', "(new + offset) / own": "new / own"},
    ),
    *mutants(
        "models/embedding.py",
        "tests/models/test_from_transformers.py",
        {"return real.cumsum(-1) * real + offset - 1": "return real.cumsum(-1) * real + offset"},
    ),
    *mutants(
        "models/embedding.py",
        "tests/models/test_generation.py",
        {"(attention_mask.long().cumsum(-1) - 1).clamp(min=0)": "attention_mask.long().cumsum(-1).clamp(min=0)"},
    ),
    *mutants(
        "models/embedding.py",
        "tests/models/test_dropout.py",
        {
            "tokens = self.dropout(tokens if self.positions is None else self.positions(tokens, grid))": (
                "tokens = tokens if self.positions is None else self.positions(tokens, grid)"
            ),
            "return self.dropout(self.norm(tokens))": "return self.norm(tokens)",
        },
    ),
    *mutants(
        "models/language.py",
        "tests/models/test_dropout.py",
        {"self.dense(self.dropout(z))": "self.dense(z)", "self.head(self.dropout(torch": "self.head((torch"},
    ),
    *mutants(
        "models/base.py",
        "tests/models/test_initialization.py",
        {
            "init.uniform_(module.bias, 0.0, 0.0)": "init.uniform_(module.bias, -0.1, 0.1)",
            "            module.reset_parameters()\n            return": "            return",
            "branches = 2 * self.config.num_hidden_layers": "branches = self.config.num_hidden_layers",
            'std = 1.0 if self.config.initializer == "torch"': 'std = 0.5 if self.config.initializer == "torch"',
        },
    ),
    *mutants(
        "models/classifier.py",
        PSEUDOCODE,
        {"logits = self.head(self.head_norm(z))": "logits = self.head(z)"},
    ),
    *mutants(
        "models/autoencoder.py",
        f"{PSEUDOCODE} tests/tasks/test_autoencoding.py",
        {
            "return rank >= kept_patches": "return rank > kept_patches",
            "sign=-1)": "sign=1)",
            "(var + 1e-6).sqrt()": "(var + 1e-1).sqrt()",
            "patches.var(dim=-1, keepdim=True)": "patches.var(dim=-1, keepdim=True, correction=0)",
        },
    ),
    *mutants(
        "models/language.py",
        "tests/models/test_transformers.py tests/models/test_outputs.py tests/models/test_twins.py",
        {
            "F.pad(labels[:, 1:], (0, 1), value=-100)": "F.pad(labels[:, 1:], (0, 1), value=0)",
            "real.sum(dim=1).clamp(min=1)": "z.shape[1]",
        },
    ),
    *mutants(
        "models/language.py",
        POOLING,
        {
            "torch.where(attention_mask.bool(), positions, 0).amax(dim=1)": (
                "torch.full((len(z),), z.shape[1] - 1, device=z.device)"
            ),
            "return z[:, 0]": "return z[:, 1]",
        },
    ),
    *mutants(
        "models/autoencoder.py",
        POOLING,
        {
            "int(patches * (1 - ratio) + 1e-9)": "int(patches * (1 - ratio))",
            "last_hidden_state.mean(dim=1)": "last_hidden_state[:, 1:].mean(dim=1)",
        },
    ),
    *mutants(
        "models/distillation.py",
        "tests/models/test_distillation.py tests/models/test_distillation_loss.py",
        {
            ".sum() - (p * log_q[:T]).sum()": ".sum()",
            "(T * (S - 1) * max(batch, 1))": "(T * S * max(batch, 1))",
            ".to(self.center.dtype), 1 - momentum)": ".to(self.center.dtype), momentum)",
            "torch._foreach_lerp_(teacher, student, 1 - momentum)": "torch._foreach_lerp_(teacher, student, momentum)",
            "init.trunc_normal_(module.weight, std=self.config.initializer_range)": (
                "init.trunc_normal_(module.weight, std=1.0)"
            ),
            "y if self.prototypes is None else self.prototypes(F.normalize(y, dim=-1))": (
                "y if self.prototypes is None else self.prototypes(y)"
            ),
            "self.teacher.train(False).requires_grad_(False)": "self.teacher.requires_grad_(False)",
            "return self.student.crate.orthogonality_penalty()": (
                "return self.student.crate.orthogonality_penalty().detach()"
            ),
        },
    ),
    *mutants(
        "models/cache.py",
        "tests/models/conventions/test_inputs.py::test_packed_sequences_do_not_see_each_other",
        {"position_ids.diff(dim=-1) != 1": "position_ids.diff(dim=-1) < 0"},
    ),
    *mutants(
        "models/cache.py",
        "tests/models/test_generation.py",
        {
            "self.keys.repeat_interleave(repeats, dim=0)": "self.keys.repeat(repeats, 1, 1, 1)",
        },
    ),
]
