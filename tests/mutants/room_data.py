"""Mutants of the data: crops, augmentation and its defaults, blocks and masks of tokens, streams."""

from .mutant import mutants

AUGMENT = "tests/data/test_augmentation.py"
MUTANTS = [
    *mutants(
        "data/transforms.py",
        AUGMENT,
        {
            "aspect = math.exp(low + (high - low) * shape)": "aspect = ratio[0] + (ratio[1] - ratio[0]) * shape",
            "(scale[0] + (scale[1] - scale[0]) * area)": "(scale[0] + (scale[1] - scale[0]) * area**2)",
            "int(x * (width - w + 1))": "int(x * (width - w))",
            "_TRIES = 10": "_TRIES = 1",
            "(1 - zoom, 1 + zoom)": "(1, 1 + zoom)",
            "(augment.affine_degrees, (shift": "(augment.affine_degrees / 2, (shift",
            "(shift, shift)": "(shift, 0.0)",
            "augment.jitter and augment.jitter_probability": "augment.jitter and 1.0",
            '("ColorJitter", augment.jitter or (),': '("ColorJitter", (augment.jitter or ())[:2] * 2,',
            "(0.1, 2.0)": "(0.1, 1.0)",
            "augment.image_size // 10 | 1": "augment.image_size // 20 | 1",
            "((0.5, 0.5), (0.0, 0.0))": "((0.25, 0.25), (0.0, 0.0))",
            "value=0.0, p=augment.erase": "value=1.0, p=augment.erase",
            "augment.flip or None": "augment.flip and 0.25",
            "augment.grayscale or None": "augment.grayscale and 0.5",
            "augment.blur or None": "augment.blur and 1.0",
            "augment.solarize or None": "augment.solarize and 1.0",
            "[3 * seed + kind for kind in range(3)]": "[seed for kind in range(3)]",
        },
    ),
    *mutants(
        "data/rand_augment.py",
        "tests/data/test_rand_augment.py",
        {
            '"shear-x": (0.3 * share, True)': '"shear-x": (0.6 * share, True)',
            '"rotate": (30.0 * share, True)': '"rotate": (15.0 * share, True)',
            "round(m / (MAGNITUDES / 4))": "round(m / (MAGNITUDES / 8))",
            "int(150 / 331 * width * share)": "int(100 / 331 * width * share)",
            "255 * (1 - share)": "255 * share",
            "torch.randint(2, (self.n, len(images))) * 2 - 1": "torch.ones(self.n, len(images), dtype=torch.long)",
        },
    ),
    *mutants(
        "data/transforms.py",
        "tests/data/test_transforms.py",
        {
            "(self.seed, int(self.epoch), index)": "(self.seed, index)",
            "short = max(round(size * augment.evaluation_ratio), size)": "short = size",
            "int(value * span) - augment.crop_padding": "int(value * span)",
            "pixels.sub_(self.mean).div_(self.std)": "pixels.sub_(self.mean)",
        },
    ),
    *mutants(
        "data/augment.py",
        AUGMENT,
        {
            "(0.08, 1.0)": "(0.2, 1.0)",
            "(3 / 4, 4 / 3)": "(1 / 2, 2)",
            "256 / 224": "1.0",
            "flip: Probability = 0.5": "flip: Probability = 0.0",
            "jitter_probability: Probability = 0.8": "jitter_probability: Probability = 0.5",
            "global_scale: ShareRange = (0.4, 1.0)": "global_scale: ShareRange = (0.25, 1.0)",
            "local_scale: ShareRange = (0.05, 0.4)": "local_scale: ShareRange = (0.05, 0.25)",
            "blur: PerView = (1.0, 0.1, 0.5)": "blur: PerView = (1.0, 0.5, 0.5)",
            "solarize: PerView = (0.0, 0.2, 0.0)": "solarize: PerView = (0.2, 0.0, 0.0)",
            'interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bicubic"': (
                'interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"'
            ),
        },
    ),
    *mutants(
        "data/blocks.py",
        "tests/data/test_masking.py tests/data/test_packing.py",
        {
            "(fate < 0.8)": "(fate < 0.9)",
            "(fate >= 0.9)": "(fate >= 0.8)",
            "chosen = (choice < probability) & ~special": "chosen = choice < probability",
            "torch.randint(masking.vocab_size, shape": "torch.randint(masking.vocab_size // 2, shape",
            "probability: float = 0.15,\n    generator": "probability: float = 0.3,\n    generator",
            "generator.integers(len(self.tokens) - self.block)": "generator.integers(len(self.tokens) // self.block)",
            "seed & 0xFFFFFFFF": "0",
            "return len(self.tokens) // self.block": "return len(self.tokens) // self.block - 1",
        },
    ),
    *mutants(
        "data/image_batches.py",
        "tests/data/test_streams.py tests/data/test_loading.py",
        {
            "if data.streaming and train and shuffle_buffer > 1:": "if False:",
            "shuffle(seed=seed, buffer_size=shuffle_buffer)": "shuffle(seed=0, buffer_size=shuffle_buffer)",
            "self.dataset.set_epoch(epoch)": "self.dataset.set_epoch(0)",
            "split_dataset_by_node(self.dataset, rank,": "split_dataset_by_node(self.dataset, 0,",
        },
    ),
    *mutants(
        "data/classes.py",
        "tests/data/test_classes.py",
        {
            "draw = np.random.RandomState(seed)": "draw = np.random.RandomState(0)",
            "int(targets[number]) < len(model)}": "int(targets[number]) <= len(model)}",
            "matched = [-1] * len(classes)": "matched = [0] * len(classes)",
        },
    ),
]
