"""Mutants of the evaluation: perplexity, LAMBADA, probes, n-grams, GLUE, ReaL labels, objects."""

from .mutant import mutants

MUTANTS = [
    *mutants(
        "data/tokens.py",
        "tests/evaluation/test_language.py",
        {"loss * count / (math.log(2) * self.bytes)": "loss / (math.log(2) * self.bytes)"},
    ),
    *mutants(
        "evaluation/language.py",
        "tests/evaluation/test_language.py tests/evaluation/test_protocols.py",
        {
            "_NEW_TOKENS = 10": "_NEW_TOKENS = 20",
            "stride = max(block // 2, 1) if stride": "stride = block if stride",
            "np.std(means, ddof=1)": "np.std(means, ddof=0)",
            "word.lower() in text.lower()": "word in text",
            '_encode(tokenizer, f" {word}")': "_encode(tokenizer, word)",
            "contexts = [ids[-most:] for": "contexts = [ids[:most] for",
            "values = values[~is_end.to(target)]": "values = values[is_end.to(target)]",
            'return "\\n" + context.translate': "return context.translate",
            "integers(len(ids) - block, size": "integers(len(ids) // 2 - block, size",
            "start = len(context) - 1 - (longest - keep)": "start = len(context) - (longest - keep)",
            "rest = total - span - full * stride": "rest = 0",
            '_pad([[1] * len(context) for context in contexts], "left")': (
                '_pad([[1] * len(context) for context in contexts], "right")'
            ),
            "block: int = 1024,\n    batch_size: int = 4,\n    iterations: int = 1000": (
                "block: int = 1024,\n    batch_size: int = 4,\n    iterations: int = 100"
            ),
            "correct / len(passages), len(passages), protocol, cut": (
                "correct / len(passages), len(passages), protocol, 0"
            ),
        },
    ),
    *mutants(
        "evaluation/probe.py",
        "tests/evaluation/test_probe.py tests/evaluation/test_protocols.py",
        {
            "TEMPERATURE = 0.07": "TEMPERATURE = 0.7",
            "KS = (10, 20, 100, 200)": "KS = (5, 20, 100, 200)",
            "similarity[own - first, own - start] = -torch.inf": "pass",
            "(ranks < 5) & (own > 0)": "(ranks < 6) & (own > 0)",
            "(ranks < 5) & (own > 0)).sum()": "(ranks < 5)).sum()",
            "STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0)": "STRENGTHS = (1e-2, 1e-1, 1.0, 10.0, 100.0)",
            "has_top5 = len(train.classes) > 5": "has_top5 = len(train.classes) >= 5",
            "((scores == own) & lower)": "((scores == own) & ~lower)",
            "return float((ranks < 5).mean())": "return float((ranks < 4).mean())",
            "(similarity - similarity[:, :1]).double() / temperature": "(similarity - similarity[:, :1]).double() / 1",
            "scaler.transform(others.astype(np.float64))": "scaler.fit_transform(others.astype(np.float64))",
            "folds: int = 5,\n    standardize": "folds: int = 3,\n    standardize",
            "possible = min(folds, int(counts.min()))": "possible = folds",
        },
    ),
    *mutants(
        "evaluation/ngram.py",
        "tests/evaluation/test_ngram.py",
        {
            "discounts = size - (size + 1)": "discounts = size - size",
            "[np.minimum(adjusted, 3)]": "[np.minimum(adjusted, 2)]",
            "minlength=vocab_size) + 1.0": "minlength=vocab_size) + 0.5",
            "if length < order:  #": "if False:  #",
            "order.discounts[history] * shorter": "order.discounts[history] / self.vocab_size",
            "counts[special] = 0": "counts[special] = 1",
            "self.log_probabilities(tokens)[1:]": "self.log_probabilities(tokens)",
        },
    ),
    *mutants(
        "evaluation/imagenet_real.py",
        "tests/evaluation/test_imagenet_real.py",
        {"int(match[1]) - 1": "int(match[1])", "strict=True) if len(valid)]": "strict=True)]"},
    ),
    *mutants(
        "evaluation/glue.py",
        "tests/evaluation/test_glue.py tests/evaluation/test_bag_of_words.py",
        {
            "if not task.in_average:": "if False:",
            'pearsonr if name == "pearson" else spearmanr': "spearmanr",
            "f1_score(labels, predictions, zero_division=0)": (
                'f1_score(labels, predictions, zero_division=0, average="macro")'
            ),
            "CountVectorizer(binary=True,": "CountVectorizer(binary=False,",
            ".fit(train[name])": ".fit([*train[name], *validation[name]])",
        },
    ),
    *mutants(
        "evaluation/objects.py",
        "tests/evaluation/test_objects.py",
        {
            "& (labels != VOID)": "",
            'ratios.max() if heads == "best" else ratios.mean()': "ratios.mean()",
            '("AP_all", "AP_50", "AP_75")': '("AP_all", "AP_75", "AP_50")',
            '"iscrowd": int(annotated.crowd)': '"iscrowd": 0',
        },
    ),
    *mutants(
        "evaluation/features.py",
        "tests/evaluation/test_features.py",
        {
            '"normalization": augment.normalization,': "",
            '        "ratio": augment.evaluation_ratio if augment.evaluation_crop == "center" else None,\n': "",
            "digest.update(tensor.detach()": "(tensor.detach()",
        },
    ),
]
