"""Loss and metrics of a sentence classifier against single sentences, and heads that do not fit."""

import datasets
import numpy as np
import pytest
import torch
from scipy import stats

from codingrate.data import SentenceDataset, load_tokenizer, pad_batch
from codingrate.evaluation import score_sentences
from tests.models import toys
from tests.refusals import refused


def rows(labels, columns=("sentence",)):
    text = {name: [f"{name} {'ab' * number}" for number in range(len(labels))] for name in columns}
    table = datasets.Dataset.from_dict({**text, "label": labels})
    return SentenceDataset(table, columns, load_tokenizer("bytes", kind="masked"), max_length=64)


def classifier(labels):
    return toys.build("sequence-classification", vocab_size=261, max_position_embeddings=64, num_labels=labels)


@pytest.mark.parametrize("columns", [("sentence",), ("sentence1", "sentence2")])
def test_scores_are_those_of_single_sentences(columns):
    model, found, heard = classifier(3).train(), rows([2, 0, 1, 1, 2, 0, 1], columns), []
    scores = score_sentences(model, found, ("accuracy",), batch_size=3, progress=heard.append)
    assert model.training, "given back as it was"
    assert heard == [3, 3, 1]
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(**pad_batch([found[index]], 1)).logits for index in range(7)])
    labels = torch.tensor([2, 0, 1, 1, 2, 0, 1])
    assert scores["accuracy"] == pytest.approx(float((logits.argmax(-1) == labels).float().mean()))
    assert scores["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), rel=1e-5)


def test_scores_of_a_regression():
    model, found = classifier(1).eval(), rows([0.5, 3.0, 2.0, 5.0, 1.5])
    scores = score_sentences(model, found, ("spearman", "pearson"), batch_size=2)
    with torch.no_grad():
        said = torch.cat([model(**pad_batch([found[index]], 1)).logits[:, 0] for index in range(5)]).double().numpy()
    truth = np.array([0.5, 3.0, 2.0, 5.0, 1.5])
    assert scores["loss"] == pytest.approx(float(((said - truth) ** 2).mean()), rel=1e-5)
    assert scores["pearson"] == pytest.approx(stats.pearsonr(said, truth)[0], rel=1e-4)
    assert scores["spearman"] == pytest.approx(stats.spearmanr(said, truth)[0])


def test_heads_that_do_not_fit():
    refused("has 1 outputs, but the labels are classes", score_sentences, classifier(1), rows([0, 1]), ["accuracy"])
    refused("has 3 outputs, but the labels are numbers", score_sentences, classifier(3), rows([0.5, 1.0]), ["pearson"])
    refused("tells 2 classes apart, but there is a label 2", score_sentences, classifier(2), rows([0, 2]), ["accuracy"])
    refused("needs a CrateForSequenceClassification, not a CrateForMaskedLM; measure it with masked_loss",
            score_sentences, toys.build("masked-lm"), rows([0]), ["accuracy"])  # fmt: skip
    refused("batch_size is 0", score_sentences, classifier(2), rows([0]), ["accuracy"], batch_size=0)
    small = toys.build("sequence-classification", max_position_embeddings=64)
    refused("outside the model's vocabulary of 29", score_sentences, small, rows([0]), ["accuracy"])
