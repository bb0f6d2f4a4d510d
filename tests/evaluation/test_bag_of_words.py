"""The bag of words: what it may see, and the fit against one written out."""

import numpy as np
import pytest
from scipy.optimize import minimize

from codingrate.evaluation import bag_of_words_metrics
from codingrate.evaluation.probe import STRENGTHS
from tests.refusals import refused

GOOD, BAD, FILL = ("fine", "warm", "sharp"), ("dull", "cold", "flat"), ("the", "film", "is", "a", "story", "of")


def reviews(count, seed, noise=0.1):
    """Sentences whose class is told by one word, some of it told wrong."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, count)
    said = np.where(random.random(count) < noise, 1 - labels, labels)
    words = [(*random.choice(FILL, 3), random.choice(GOOD if good else BAD)) for good in said]
    return {"sentence": [" ".join(random.permutation(list(some))) for some in words], "label": labels.tolist()}


def presence(train, *splits):
    """Return which words of the training text each sentence has, for every split."""
    vocabulary = sorted({word for text in train["sentence"] for word in text.split()})
    texts = [[text.split() for text in rows["sentence"]] for rows in (train, *splits)]
    return [np.array([[float(word in some) for word in vocabulary] for some in split]) for split in texts]


def test_the_fit_is_the_one_of_the_formula():
    train, test = reviews(61, 0), reviews(53, 1)
    found = bag_of_words_metrics(train, test, ["sentence"], ["accuracy"])
    (x, x_test), sign = presence(train, test), 2 * np.array(train["label"]) - 1
    assert (found["words"], found["strength"] in STRENGTHS) == (x.shape[1], True)

    def loss(theta):  # ½‖w‖² + C Σ log(1 + exp(−y(wᵀx + b)))
        margins = sign * (x @ theta[:-1] + theta[-1])
        return 0.5 * theta[:-1] @ theta[:-1] + found["strength"] * np.logaddexp(0, -margins).sum()

    theta = minimize(loss, np.zeros(x.shape[1] + 1), method="BFGS").x
    guesses = x_test @ theta[:-1] + theta[-1] > 0
    assert found["accuracy"] == np.mean(guesses == np.array(test["label"]))
    assert found["accuracy"] > 0.8


def test_neither_order_nor_words_of_the_validation_text_matter_and_columns_are_kept_apart():
    train, test = reviews(61, 2), reviews(53, 3)
    turned = {**test, "sentence": [" ".join(reversed(text.split())) for text in test["sentence"]]}
    longer = {**test, "sentence": [f"{text} unseen{index}" for index, text in enumerate(test["sentence"])]}
    plain, *others = (bag_of_words_metrics(train, rows, ["sentence"], ["accuracy"]) for rows in (test, turned, longer))
    assert others == [plain, plain]
    pair = {"one": train["sentence"], "two": ["the film"] * 61, "label": train["label"]}
    other = {"one": ["the film"] * 53, "two": test["sentence"], "label": test["label"]}
    found = bag_of_words_metrics(pair, other, ["one", "two"], ["accuracy"])
    assert found["accuracy"] < 0.7, "trained on the other column"


def test_the_strength_of_a_ridge_regression_is_one_over_its_penalty():
    train, test = reviews(61, 8, noise=0.4), reviews(53, 9, noise=0.4)
    found = bag_of_words_metrics(train, test, ["sentence"], ["pearson", "spearman"])
    assert found["strength"] != 1
    x, x_test = presence(train, test)
    y, centered = np.array(train["label"]), x - x.mean(axis=0)  # ‖Xw + b − y‖² + ‖w‖²/strength
    w = np.linalg.solve(centered.T @ centered + np.eye(x.shape[1]) / found["strength"], centered.T @ (y - y.mean()))
    assert found["pearson"] == pytest.approx(np.corrcoef(x_test @ w, test["label"])[0, 1], rel=1e-3)


def test_too_few_sentences():
    refused("9 training", bag_of_words_metrics, reviews(9, 0), reviews(9, 1), ["sentence"], ["accuracy"])
