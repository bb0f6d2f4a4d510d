"""Constants of published protocols against a table with their sources, and one rule that depends on each."""

from __future__ import annotations

import inspect

import numpy as np

from codingrate.evaluation import language, probe
from codingrate.evaluation.features import Features

PROTOCOLS = {
    # paper 4.1.3: k-NN of Caron et al. (2021), main of eval_knn.py: nb_knn and temperature
    (probe.knn_probe, "temperature"): 0.07,
    # paper 4.1.3: regularization of the linear probe
    (probe.logistic_probe, "strengths"): (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0),
    (probe.logistic_probe, "folds"): 5,
    (probe.logistic_probe, "iterations"): 1000,
    # paper 4.1.4 after nanoGPT's estimate_loss: batches and windows of the validation loss
    (language.sampled_loss, "block"): 1024,
    (language.sampled_loss, "iterations"): 1000,
    (language.sampled_loss, "batch_size"): 4,
}


def test_defaults_are_those_of_the_protocols():
    found = {(function, name): inspect.signature(function).parameters[name].default for function, name in PROTOCOLS}
    assert found == PROTOCOLS
    assert probe.KS == (10, 20, 100, 200)
    assert language._NEW_TOKENS == 10  # the ToST release generates ten tokens for LAMBADA


def test_a_class_without_votes_is_not_among_the_best_five():
    """Six classes, neighbors of two of them: the label 5 has no vote, although only five classes are ahead of it."""
    classes = tuple("abcdef")
    train = Features(np.eye(6, dtype=np.float32).repeat(4, axis=0), np.arange(6).repeat(4), classes)
    test = Features(np.array([[1, 0.1, 0, 0, 0, 0]], np.float32), np.array([3]), classes)
    report = probe.knn_probe(train, test, ks=[5])
    assert report.metrics["top5"] == 0.0
    near = Features(test.values, np.array([1]), classes)
    assert probe.knn_probe(train, near, ks=[5]).metrics["top5"] == 1.0


def test_five_classes_have_no_top5_and_six_do():
    for count in (5, 6):
        classes = tuple("abcdef"[:count])
        train = Features(np.eye(count, dtype=np.float32).repeat(4, axis=0), np.arange(count).repeat(4), classes)
        test = Features(np.eye(count, dtype=np.float32), np.arange(count), classes)
        for report in (probe.knn_probe(train, test, ks=[2, 3]), probe.logistic_probe(train, test, strengths=[1.0])):
            assert ("top5" in report.metrics) == (count > 5)
