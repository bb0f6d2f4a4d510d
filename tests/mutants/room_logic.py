"""Mutants of the logic, over all rooms: another branch, split or axis, swapped arguments, masks, seeds and modes.

The other lists change constants, signs and defaults. Here the code does something sensible, but not what it says.
"""

from .mutant import mutants

TRACING = "tests/inspection/test_tokens.py tests/inspection/test_text.py"
RATES = "tests/inspection/test_rates.py tests/inspection/test_layers.py"
LANGUAGE = "tests/evaluation/test_language.py"
PROBE = "tests/evaluation/test_probe.py"
CONTRACT = "tests/operators/test_contract.py tests/operators/test_attention.py"
MUTANTS = [
    *mutants(
        "inspection/measure/attention.py",
        "tests/inspection/test_heads.py tests/inspection/test_attention_maps.py tests/inspection/test_text.py",
        {
            "attention_entropy(maps).mean(0)": "attention_entropy(maps.mean(0))",
            "(position[:, None] - position).abs()": "(position[:, None] - position)",
            "values[:, int(causal) :]": "values[:, 1:]",
        },
    ),
    *mutants(
        "inspection/measure/tracing.py",
        TRACING,
        {
            "key, value, self.mask, True, token)": "key, value, self.mask, True, 0)",
            "centered = patches - mean": "centered = patches - patches.mean(1, keepdim=True)",
            "torch.randperm(n, generator=generator)[:size]": "torch.randperm(n)[:size]",
        },
    ),
    *mutants(
        "inspection/measure/rates.py",
        RATES,
        {
            "mask is None or bool(mask.all())": "mask is None or bool(mask.any())",
        },
    ),
    *mutants(
        "inspection/measure/sparse_units.py",
        "tests/inspection/test_sparse_units.py",
        {
            "stats.fired >= max(stats.places.shape[-1]": "stats.fired >= min(stats.places.shape[-1]",
            "pad(batch.ids.cpu().masked_fill(~real, -1), self.around": "pad(batch.ids.cpu(), self.around",
        },
    ),
    *mutants(
        "inspection/measure/logit_lens.py",
        "tests/inspection/test_logit_lens.py",
        {
            "rows = torch.arange(len(where))": "rows = torch.zeros_like(where)",
            "return batch.labels.masked_fill(~batch.real, -100)": "return batch.labels",
        },
    ),
    *mutants(
        "inspection/measure/interventions.py",
        "tests/inspection/test_interventions.py",
        {
            "logits[:, position] if logits.ndim == 3": "logits[:, -1] if logits.ndim == 3",
            "intervention.first_layer(len(_layers(model))) - 1": "intervention.first_layer(len(_layers(model)))",
        },
    ),
    *mutants(
        "inspection/measure/predictions.py",
        "tests/inspection/test_predictions.py",
        {"math.hypot(last_error, last / first * first_error)": "math.hypot(last_error, first_error)"},
    ),
    *mutants(
        "inspection/report/layers.py",
        "tests/inspection/test_layers.py",
        {
            '(table["change"] / table["before_normalized"]).mean()': (
                'table["change"].mean() / table["before_normalized"].mean()'
            )
        },
    ),
    *mutants(
        "inspection/segment/cuts.py",
        "tests/inspection/test_cuts.py tests/inspection/test_segment.py",
        {"            weights[:, new.ravel()] = WEAK\n": ""},
    ),
    *mutants(
        "inspection/segment/pictures.py",
        "tests/inspection/test_segment.py tests/inspection/test_attention_masks.py",
        {"BatchAugment(augment).eval()(values[None])": "BatchAugment(augment).train()(values[None])"},
    ),
    *mutants(
        "evaluation/language.py",
        LANGUAGE,
        {
            "_report(tokens, sum(sums) / sum(counts), end": (
                "_report(tokens, sum(total / count for total, count in zip(sums, counts)) / len(sums), end"
            ),
            "available = [length - len(word) for word in words]": (
                "available = [length - max(map(len, words))] * len(words)"
            ),
        },
    ),
    *mutants(
        "evaluation/probe.py",
        PROBE,
        {
            "values=(test.values - shift) @ matrix": (
                "values=(test.values - test.values.mean(axis=0, dtype=np.float32)) @ matrix"
            ),
            "neighbor_labels[:, previous:k], weights[:, previous:k]": (
                "neighbor_labels[:, previous:k], weights[:, : k - previous]"
            ),
            "best = grid[int(correct.argmax())]": "best = grid[len(grid) - 1 - int(correct[::-1].argmax())]",
            'key=lambda row: row["train_top1"] or 0.0': 'key=lambda row: row["top1"]',
        },
    ),
    *mutants(
        "evaluation/ngram.py",
        "tests/evaluation/test_ngram.py",
        {
            "history = np.concatenate(([-1], index[:-1]))": "history = np.roll(index, 1)",
            "past[len(past) - length :]": "past[:length]",
        },
    ),
    *mutants(
        "evaluation/objects.py",
        "tests/evaluation/test_objects.py",
        {"len(means), sum(means) / len(means)": "len(means), sum(per_class.values()) / len(per_class)"},
    ),
    *mutants(
        "evaluation/features.py",
        "tests/evaluation/test_features.py",
        {"with eval_mode(model):": "with contextlib.nullcontext():"},
    ),
    *mutants(
        "evaluation/glue.py",
        "tests/evaluation/test_glue.py tests/evaluation/test_bag_of_words.py",
        {"strength = 1 / chosen if regression else chosen": "strength = chosen"},
    ),
    *mutants(
        "operators/attention.py",
        CONTRACT,
        {
            "self.beta(z, mask, past_length)[:, : out.shape[1]]": "self.beta(z, mask, past_length)[:, -out.shape[1] :]",
            "real.cumsum(-1)[:, -n:]": "real.cumsum(-1)[:, :n]",
            "visible[:, 0].sum(-1)": "visible[:, 0].sum(-2)",
            "if mask is None and (not causal or last):": "if last or (mask is None and not causal):",
        },
    ),
    *mutants(
        "operators/sparsify.py",
        "tests/operators/test_contract.py tests/operators/test_ista.py",
        {"trains = torch.is_grad_enabled() and self.dictionary.requires_grad": "trains = self.training"},
    ),
    *mutants(
        "theory/inverse.py",
        "tests/theory/test_inverse.py",
        {"z = (clean + sigma": "z = (sample.clean + sigma"},
    ),
    *mutants(
        "_attention_mass.py",
        "tests/test_attention_mass.py tests/evaluation/test_objects.py",
        {
            "((height, masks.shape[-2]), (width, masks.shape[-1]))": (
                "((height, masks.shape[-1]), (width, masks.shape[-2]))"
            )
        },
    ),
    *mutants(
        "models/layers.py",
        "tests/models/test_stochastic_depth.py",
        {"torch.rand(len(update), 1, 1, device": "torch.rand(*update.shape[:2], 1, device"},
    ),
    *mutants(
        "models/embedding.py",
        "tests/models/test_generation.py tests/models/test_embedding.py",
        {".clamp(min=0)[:, -tokens.shape[1] :]": ".clamp(min=0)[:, : tokens.shape[1]]"},
    ),
    *mutants(
        "models/autoencoder.py",
        "tests/models/test_pooling.py tests/models/test_outputs.py tests/tasks/test_autoencoding.py",
        {"errors.sum(dim=1) / counted.sum(dim=1).clamp(min=1)": "errors.sum(dim=1) / counted.shape[1]"},
    ),
    *mutants(
        "models/distillation.py",
        "tests/models/test_distillation.py tests/models/test_distillation_loss.py",
        {
            "teacher_entropy(teacher, self.center, teacher_temperature)": (
                "teacher_entropy(teacher, self.center, student_temperature)"
            )
        },
    ),
    *mutants(
        "data/columns.py",
        "tests/data/test_images.py tests/data/test_sentences.py",
        {"max(round(share * len(rows)), 1), len(rows) - 1)": "max(round(share * len(rows)), 1), len(rows))"},
    ),
    *mutants(
        "data/documents.py",
        "tests/data/test_text.py",
        {"Span(self.path, low + cut, None)": "Span(self.path, low, None)"},
    ),
    *mutants(
        "data/sources.py",
        "tests/data/test_images.py tests/data/test_text.py",
        {'for split in ("test", "validation") if': 'for split in ("validation", "test") if'},
    ),
    *mutants(
        "tasks/language.py",
        "tests/evaluation/test_text_tasks.py",
        {"self.tokens(split or self.default_split).array(),": "self.tokens(self.default_split).array(),"},
    ),
    *mutants(
        "tasks/sentences.py",
        "tests/tasks/test_sentences.py",
        {" sentences.split(name),\n": " sentences.split(sentences.held_out[0]),\n"},
    ),
    *mutants(
        "tasks/autoencoding.py",
        "tests/tasks/test_autoencoding.py tests/inspection/test_inspecting.py",
        {"torch.zeros_like(patches))[mask]": "torch.zeros_like(patches))[~mask]"},
    ),
    *mutants(
        "runs/glue.py",
        "tests/cli/test_text.py",
        {
            "for splits in first.values() for value in splits.values()]": (
                "for splits in first.values() for value in [sum(splits.values()) / len(splits)]]"
            )
        },
    ),
    *mutants(
        "runs/zero_shot_report.py",
        "tests/cli/test_text.py",
        {'"test" if task.data.text.test is not None else task.default_split': "task.default_split"},
    ),
    *mutants(
        "objective/sparsity.py",
        "tests/objective",
        {"size = z.abs().amax((-2, -1), keepdim=True)": "size = z.abs().amax(-1, keepdim=True)"},
    ),
    *mutants(
        "theory/projection.py",
        "tests/theory/test_projection.py",
        {"(part * ~own[:, None])": "(part * own[:, None])"},
    ),
]
