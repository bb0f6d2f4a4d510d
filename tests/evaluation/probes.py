"""Features of Gaussian classes, to probe without a model."""

import numpy as np

from codingrate.evaluation import Features


def gaussian(rows, width, classes, seed=0, spread=1.5):
    """Rows around one mean per class, the means the same for every seed; every class is there."""
    means = np.random.RandomState(7).normal(size=(classes, width))
    draw = np.random.RandomState(seed)
    labels = np.concatenate([np.arange(classes), draw.randint(classes, size=rows - classes)])
    values = means[labels] + spread * draw.normal(size=(rows, width))
    return Features(values.astype(np.float32), labels, tuple(f"class {i}" for i in range(classes)))


def features(values, labels, classes=None):
    values, labels = np.asarray(values, np.float32), np.asarray(labels, np.int64)
    return Features(values, labels, classes or tuple(map(str, range(labels.max() + 1))))
