"""The layout without a server: handlers return what the page shows, and errors are one message."""

import html
from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import parse_qsl

import gradio as gr
import pytest

from codingrate.explorer import Library, build_app, build_tab, images
from codingrate.explorer.tabs.common import guarded, python_call, read_changes
from codingrate.explorer.tabs.compare import CompareTab
from codingrate.explorer.tabs.image import COLORINGS, ImageTab, start
from codingrate.explorer.tabs.model_tab import Ranking
from codingrate.explorer.tabs.text import TextTab
from codingrate.explorer.tabs.training import TrainingTab
from codingrate.inspection import Intervention
from tests.refusals import refused

NAME = "toy-digits"


def event(**data):
    return SimpleNamespace(_data=data)


@pytest.fixture(scope="module")
def tab(library):
    return build_tab(lambda: ImageTab(library))


def test_the_app_has_a_tab_for_all_there_is_to_show(library, tmp_path, toy_run):
    def titles(app):
        return [block.label for block in app.blocks.values() if isinstance(block, gr.Tab)]

    app = build_app(library)
    assert titles(app) == ["Image", "Text", "Compare", "Playground", "Training"]
    assert not app.analytics_enabled
    (tmp_path / "recipe.yaml").write_text((toy_run / "recipe.yaml").read_text())  # a run that has just been started
    assert titles(build_app(Library([tmp_path]))) == ["Playground", "Training"]


def test_handlers_replace_the_state_and_leave_the_old_one(tab, library):
    first = start(library, NAME)
    shown = tab.choose_patch(first, event(patch=9))
    assert shown[tab.state].patch == 9
    assert first.patch != 9
    assert tab.state in shown
    assert tab.prediction not in shown  # a click on a patch computes nothing else
    off = tab.change(first, Intervention(heads=((1, 1),)))
    assert "→" in off[tab.prediction]
    assert off[tab.state].changes.heads == ((1, 1),)
    early = tab.change(first, Intervention(layers=1))
    assert early[tab.state].layer == 1
    assert tab.change(first, Intervention(layers=3))[tab.state].changes == Intervention()  # all layers


def test_another_model_keeps_an_uploaded_picture(tab, library):
    picture = images.reference(library, NAME).images[7].picture
    image = images.ImageInput.of(library.entry(NAME), picture)
    own = replace(start(library, NAME), image=image, picture=picture)
    assert tab.choose_model(own, "toy-vit")[tab.state].image == image


def test_what_a_model_does_not_have_is_refused(tab, library):
    first = start(library, NAME)
    for changes, words in (
        (Intervention(heads=((4, 1),)), "is not there"),
        ('{"heads": "x"}', "must be a list of pairs"),
        ("[", "not JSON"),
        ("[" * 19_000, "not JSON"),
        (" " * 30_000, "30,000 characters"),
    ):
        refused(words, tab.change, first, changes)
    with pytest.raises(gr.Error, match=r"There is no sample 1000"):
        guarded(tab.choose_sample)(first, event(index=999))


def test_the_python_call_reproduces_the_state(library):
    entry = library.entry(NAME)
    changes = Intervention(heads=((1, 2),), atoms=((2, 5),), sparsity=2.0, step_size=0.5, layers=2)
    names: dict = {}
    exec(python_call(entry, changes), names)
    assert names["changed"].intervention == changes
    assert read_changes('{"heads": [[1, 2]]}', entry) == Intervention(heads=((1, 2),))


def test_models_that_read_different_things_are_not_compared(library):
    compare = build_tab(lambda: CompareTab(library))
    refused("one of the models reads images", compare.choose_models, None, NAME, "crate-shakespeare-gpt")
    shown = compare.load()
    assert "toy-vit" in shown[compare.views[1]]
    text = compare.choose_models(None, "crate-shakespeare-gpt", "crate-shakespeare-gpt, untrained")
    assert "random weights" in text[compare.views[1]]


def test_the_training_tab_draws_the_metrics(library):
    training = build_tab(lambda: TrainingTab(library))
    status, metrics, layers = training.show(NAME)
    assert "finished" in status
    assert metrics.count('class="chart"') >= 3
    assert layers.count('class="chart"') == 3


def test_a_published_model_without_a_history_shows_its_metrics_as_numbers():
    shown = build_tab(lambda: TrainingTab(Library(["crate-cifar10"]))).load()
    assert "no history" in shown[0]
    assert "top1 83.50%" in shown[1]
    assert 'class="chart"' not in shown[1]


def test_text_that_no_longer_fits_the_context_goes_on(text_tab):
    state = text_tab.first_state("crate-shakespeare-gpt")
    for _ in range(5):
        shown = text_tab.extend(state, state.text, False, 20)
        assert shown[text_tab.prompt].startswith(state.text)
        state = shown[text_tab.state]
    assert "come before" in shown[text_tab.tokens]
    assert text_tab.load(request(text_tab.query(state)))[text_tab.state] == state


def request(query: str):
    return SimpleNamespace(query_params=dict(parse_qsl(query.removeprefix("?"))))


@pytest.fixture(scope="module")
def text_tab(library):
    return build_tab(lambda: TextTab(library))


def test_a_link_reproduces_an_image_and_its_interventions(tab, library):
    changes = Intervention(heads=((1, 2),), atoms=((2, 5),), sparsity=2.0, layers=2)
    state = replace(start(library, NAME, 4), layer=2, patch=3, coloring=COLORINGS[2], changes=changes)
    assert tab.load(request(tab.query(state)))[tab.state] == state
    assert tab.load(request(""))[tab.state] == start(library, NAME)
    assert tab.load(request(tab.query(state).replace("tab=image", "tab=text")))[tab.state] == start(library, NAME)
    assert "without your picture" in tab.show_patch(replace(state, picture=state.image.picture, sample=None))[tab.link]


def test_a_link_reproduces_a_text(text_tab):
    state = text_tab.first_state("crate-shakespeare-gpt")
    state = text_tab.choose_text(state, "To be & <not> to be?\nRÖMEO: #1 %41+")[text_tab.state]
    state = replace(state, position=5, head=2, layer=3, changes=Intervention(heads=((1, 1),)))
    assert text_tab.load(request(text_tab.query(state)))[text_tab.state] == state
    long = replace(state, text="ö" * 3000)
    assert "too long for a link" in text_tab.show_link(long)


HOSTILE_LINKS = [
    ("model=../../etc/passwd", "model is"),
    ("model=<script>alert(1)</script>", "&lt;script&gt;"),
    ("sample=0", "sample is '0'; it must be a whole number from 1 to"),
    ("sample=1e9", "sample is '1e9'"),
    ("sample=-1", "sample is '-1'"),
    ("sample=" + "9" * 5000, "sample is"),
    ("patch=17", "from 1 to 16"),
    ("patch=٣", "patch is"),
    ("layer=4", "from 1 to 3"),
    ('layer=3&changes={"layers":2}', "from 1 to 2"),
    ("coloring=red", "it must be one of: picture"),
    ("changes=[", "not JSON"),
    ('changes={"heads":[[9,9]]}', "is not there"),
    ('changes={"sparsity":1e400}', "between 0 and a million"),
    ("changes=" + "[" * 19_000, "not JSON"),
    ("changes=" + "1" * 30_000, "30,000 characters"),
]


def test_a_hostile_link_is_one_line_and_the_page_opens(tab, library):
    for query, words in HOSTILE_LINKS:
        with pytest.warns(UserWarning, match="The link cannot be opened") as told:
            shown = tab.load(request("?tab=image&" + query))
        assert shown[tab.state] == start(library, NAME)
        (message,) = (str(one.message) for one in told)
        assert words in html.unescape(message) if "&lt;" not in words else words in message
        assert "\n" not in message
        assert len(message) < 400


def test_heads_are_ranked_for_the_question_that_was_asked(tab, library):
    first, done = start(library, NAME), []
    ranking = tab.rank(first, lambda count, **_: done.append(count))
    assert done == [(1, 3), (2, 3), (3, 3)]
    assert set(ranking.scores) == {(layer, head) for layer in (1, 2, 3) for head in (1, 2, 3)}
    assert tab.show_ranking(first, ranking)[tab.state].scores == ranking.scores
    other = replace(first, patch=2, changes=Intervention(heads=((1, 1),)))  # went on meanwhile
    assert tab.show_ranking(other, ranking)[tab.state] == replace(other, scores=ranking.scores)
    assert tab.show_ranking(start(library, NAME, 1), ranking)[tab.state].scores == {}
    assert tab.show_ranking(first, None)[tab.state] == first
    assert isinstance(ranking, Ranking)
