"""The linear probe against scikit-learn's own regression, at one strength and along the grid."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import top_k_accuracy_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from codingrate.errors import CrateError
from codingrate.evaluation import logistic, logistic_probe

from .probes import features, gaussian

EXACT = {"tolerance": 1e-9, "iterations": 10_000}


def pipeline(strength):
    return make_pipeline(StandardScaler(), LogisticRegression(C=strength, tol=1e-9, max_iter=10_000))


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_is_scikit_learns_regression_at_the_chosen_strength(classes):
    train, test = gaussian(211, 5, classes, seed=1), gaussian(97, 5, classes, seed=2)
    heard = []
    result = logistic_probe(train, test, progress=lambda: heard.append(1), **EXACT)
    model = pipeline(result.C).fit(train.values.astype(np.float64), train.labels)
    x = test.values.astype(np.float64)
    assert result.top1 == pytest.approx(model.score(x, test.labels))
    assert result.train_top1 == pytest.approx(model.score(train.values.astype(np.float64), train.labels))
    five = top_k_accuracy_score(test.labels, model.decision_function(x), k=5) if classes > 5 else None
    assert result.top5 == (pytest.approx(five) if classes > 5 else None)
    assert (result.folds, len(heard), result.converged) == (5, 36, True)
    assert result.top1 > 1.5 / classes


def test_the_warm_path_is_that_of_cold_fits():
    train, test = gaussian(211, 5, 3, seed=1), gaussian(97, 5, 3, seed=2)
    result = logistic_probe(train, test, folds=3, seed=4, **EXACT)
    x, parts = train.values.astype(np.float64), StratifiedKFold(3, shuffle=True, random_state=4)
    assert [row["C"] for row in result.table] == list(logistic.STRENGTHS)
    for row in result.table:
        right = sum(
            (pipeline(row["C"]).fit(x[learn], train.labels[learn]).predict(x[held]) == train.labels[held]).sum()
            for learn, held in parts.split(x, train.labels)
        )
        assert row["validation_top1"] == pytest.approx(right / 211)
        assert row["converged"]
    best = max(result.table, key=lambda row: (row["validation_top1"], -row["C"]))
    assert best["C"] == result.C


def test_warm_weights_are_cold_weights():
    train = gaussian(211, 5, 3, seed=1)
    x, _ = logistic._standardized(train.values)
    warm = logistic._regression(warm_start=True, tol=1e-9, max_iter=10_000)
    for strength in logistic.STRENGTHS:
        logistic._fit(warm.set_params(C=strength), x, train.labels)
        cold = logistic._regression(C=strength, tol=1e-9, max_iter=10_000).fit(x, train.labels)
        np.testing.assert_allclose(warm.coef_, cold.coef_, atol=1e-4)  # gradients below 1e-9, curvature above 1e-6


def test_finds_the_same_whatever_the_units():
    train, test = gaussian(211, 5, 3, seed=1), gaussian(97, 5, 3, seed=2)
    units = np.array([1e-3, 1, 1e3, 7, 0.1], np.float32)
    scaled = (features(part.values * units + units, part.labels, part.classes) for part in (train, test))
    assert logistic_probe(*scaled, **EXACT).top1 == logistic_probe(train, test, **EXACT).top1


def test_the_seed_draws_the_folds():
    train, test = gaussian(211, 5, 7, seed=1, spread=3), gaussian(97, 5, 7, seed=2)
    first, again, other = (logistic_probe(train, test, seed=seed, strengths=[0.1, 1]) for seed in (0, 0, 1))
    assert first == again
    assert first.table != other.table


def test_constant_features_do_no_harm():
    train, test = gaussian(53, 5, 3, seed=1), gaussian(31, 5, 3, seed=2)
    more = (features(np.c_[part.values, np.full(len(part), 3.0)], part.labels, part.classes) for part in (train, test))
    assert logistic_probe(*more, **EXACT).top1 == logistic_probe(train, test, **EXACT).top1


def test_fits_that_were_cut_short_are_named_not_warned_about():
    train, test = gaussian(211, 5, 3, seed=1, spread=0.5), gaussian(97, 5, 3, seed=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        result = logistic_probe(train, test, strengths=[1e-3, 1e6], iterations=18)
    assert [row["converged"] for row in result.table] == [True, False]
    assert (result.C, result.converged) == (1e6, False)


def test_other_warnings_are_passed_on(monkeypatch):
    def fit(x, labels):
        warnings.warn("something else", RuntimeWarning, stacklevel=1)

    model = logistic._regression()
    monkeypatch.setattr(model, "fit", fit)
    with pytest.warns(RuntimeWarning, match="something else"):
        assert logistic._fit(model, None, None)


def test_folds_are_as_many_as_the_rarest_class_has_images():
    train = gaussian(53, 5, 3, seed=1)
    kept = np.concatenate([np.flatnonzero(train.labels == 0)[:3], np.flatnonzero(train.labels != 0)])
    few = features(train.values[kept], train.labels[kept], train.classes)
    heard = []
    result = logistic_probe(few, train, strengths=[1.0], progress=lambda: heard.append(1))
    assert (result.folds, len(heard)) == (3, 4)
    single = features(train.values[kept[2:]], train.labels[kept[2:]], train.classes)
    with pytest.raises(CrateError, match="class 'class 0' has a single training image"):
        logistic_probe(single, train)


def test_classes_without_a_training_image_may_be_left_out_of_both():
    train, test = gaussian(97, 5, 7, seed=1), gaussian(53, 5, 7, seed=2)
    without = (
        features(part.values[part.labels != 3], part.labels[part.labels != 3], part.classes) for part in (train, test)
    )
    result = logistic_probe(*without, strengths=[0.1])
    assert 0.3 < result.top1 < result.top5 <= 1


@pytest.mark.parametrize(
    "options", [{"strengths": []}, {"strengths": [0, 1]}, {"folds": 1}, {"iterations": 0}, {"tolerance": 0}]
)
def test_settings_that_make_no_sense(options):
    with pytest.raises(CrateError, match="logistic regression takes strengths above 0"):
        logistic_probe(gaussian(31, 5, 3), gaussian(11, 5, 3), **options)
