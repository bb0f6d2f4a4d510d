"""The layout without a server: handlers return what the page shows, and errors are one message."""

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
    assert (shown[tab.state].patch, first.patch == 9) == (9, False)
    assert tab.prediction not in shown  # a click on a patch computes nothing else
    changes = ({"heads": ((1, 1),)}, {"layers": 1}, {"layers": 3})
    off, early, all_layers = (tab.change(first, Intervention(**fields)) for fields in changes)
    assert "→" in off[tab.prediction]
    assert off[tab.panel.answer] == off[tab.prediction]
    assert off[tab.state].changes.heads == ((1, 1),)
    assert (early[tab.state].layer, all_layers[tab.state].changes) == (1, Intervention())
    picture = images.reference(library, NAME).images[7].picture
    image = images.ImageInput.of(library.entry(NAME), picture)
    own = replace(first, image=image, picture=picture)
    assert tab.choose_model(own, "toy-vit")[tab.state].image == image, "another model keeps an uploaded picture"


def test_what_a_model_does_not_have_is_refused(tab, library):
    first = start(library, NAME)
    for changes in (Intervention(heads=((4, 1),)), '{"heads": "x"}', "[", "[" * 19_000, " " * 30_000):
        refused("", tab.change, first, changes)
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
    status, metrics, layers = build_tab(lambda: TrainingTab(library)).show(NAME)
    assert "finished" in status
    assert metrics.count('class="chart"') >= layers.count('class="chart"') == 3
    shown = build_tab(lambda: TrainingTab(Library(["crate-cifar10"]))).load()
    assert "no history" in shown[0]
    assert "top1 83.50%" in shown[1], "a published model without a history shows its metrics as numbers"
    assert 'class="chart"' not in shown[1]


def test_a_link_reproduces_a_text_also_one_that_goes_on_beyond_the_context(text_tab):
    state = text_tab.first_state("crate-shakespeare-gpt")
    for _ in range(5):
        shown = text_tab.extend(state, state.text, False, 20)
        assert shown[text_tab.prompt].startswith(state.text)
        state = shown[text_tab.state]
    assert "come before" in shown[text_tab.tokens]
    other = text_tab.choose_text(state, "To be & <not> to be?\nRÖMEO: #1 %41+")[text_tab.state]
    other = replace(other, position=5, head=2, layer=3, changes=Intervention(heads=((1, 1),)))
    for one in (state, other):
        assert text_tab.load(request(text_tab.query(one)))[text_tab.state] == one
    assert "too long for a link" in text_tab.show_link(replace(other, text="ö" * 3000))


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


HOSTILE_LINKS = {
    "model": ["../../etc/passwd", "<script>alert(1)</script>"],
    "sample": ["0", "1e9", "-1", "9" * 5000],
    "patch": ["17", "٣"],
    "layer": ["4", '3&changes={"layers":2}'],
    "coloring": ["red"],
    "changes": ["[", '{"heads":[[9,9]]}', '{"sparsity":1e400}', "[" * 19_000, "1" * 30_000],
}


@pytest.mark.parametrize("key", HOSTILE_LINKS)
def test_a_hostile_link_is_one_line_and_the_page_opens(tab, library, key):
    for value in HOSTILE_LINKS[key]:
        with pytest.warns(UserWarning, match="The link cannot be opened") as told:
            shown = tab.load(request(f"?tab=image&{key}={value}"))
        assert shown[tab.state] == start(library, NAME)
        (message,) = (str(one.message) for one in told)
        assert key == "changes" or f"{key} is" in message
        assert not {"\n", "<"} & set(message)
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
