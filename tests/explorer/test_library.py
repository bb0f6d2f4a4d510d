"""The library of models, its cache, what is drawn of it, and a run that trains."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from codingrate import pretrained_names
from codingrate._chart import Series, line_chart
from codingrate.explorer import Library, draw
from codingrate.explorer.cache import ValueCache
from codingrate.explorer.library import Prediction
from codingrate.explorer.monitor import read_progress
from codingrate.inspection import Intervention
from codingrate.runs import Run
from tests.pages import Reader
from tests.refusals import refused

HOSTILE = ['<img src=x onerror="window.ran=1">', '" onmouseover="window.ran=1', "${alert(1)}", "{{alert(1)}}"]


def test_names_by_what_models_read(library):
    assert library.names("vision") == ["toy-digits", "toy-vit"]
    assert library.names("text") == ["crate-shakespeare-gpt"]
    assert "toy-digits, untrained" in library.names(before=True)
    assert library.entry("toy-digits").white_box
    assert not library.entry("toy-vit").white_box
    refused("unknown model 'toy-digit'; did you mean", library.entry, "toy-digit")


def test_an_earlier_checkpoint_and_an_untrained_model_are_models_of_their_own(library, toy_run):
    entry, last, new = (library.entry(f"toy-digits{part}") for part in (", step 3", "", ", untrained"))
    assert "as it was after training step 3" in entry.subtitle
    assert entry.name in library.names(before=True)
    assert entry.name not in library.names()
    expected, weights = last.run.model(3).state_dict(), entry.model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    for other in (entry, new):
        assert other.model.head.weight.shape == last.model.head.weight.shape
        assert not torch.equal(other.model.head.weight, last.model.head.weight)
    refused("explore the run itself", Library, [Run(toy_run).intervene(layers=1)])
    assert set(Library().names()) == set(pretrained_names())


def test_the_cache_holds_what_fits():
    cache = ValueCache(limit=10, size=len)
    for key in "abcd":
        cache.get(key, lambda key=key: key * 4)
    assert (len(cache), cache.bytes) == (2, 8)
    cache.get("c", lambda: pytest.fail("it is there"))
    cache.get("e", lambda: "eeee")
    cache.get("c", lambda: pytest.fail("it was used last but one"))
    assert cache.get("d", lambda: "new!") == "new!"


def test_threads_that_ask_for_the_same_compute_it_once():
    cache, calls, start = ValueCache(limit=99, size=len), [], threading.Barrier(8)

    def ask(_):
        start.wait()
        return cache.get("key", lambda: calls.append(1) or "value")

    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(ask, range(8))] == ["value"] * 8
    assert calls == [1]


def test_a_failed_computation_is_tried_again():
    cache = ValueCache(limit=99, size=len)
    with pytest.raises(ZeroDivisionError):
        cache.get("key", lambda: 1 / 0)
    assert cache.get("key", lambda: "value") == "value"


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_escaped_in_every_piece(name):
    pieces = [
        draw.prediction_bars([Prediction(name, 0.5, 0.2)], changed=True),
        draw.thumbnails(["data:"], [name]),
        draw.token_strip([name, name], None, 0),
        draw.lens_table([(1, [name] * 4, [0.1] * 4, 0.2)]),
        draw.unit_list([(1, 0.5, 0.5, [(name, name, name)])], 1),
        draw.neighbor_tiles([("data:", 0, (2, 2), 0.5, name)]),
        draw.picture_view("data:", (2, 2), 1, None, name),
        draw.heading(name, name),
        line_chart([Series(name, [1, 2], [1, 2])], name),
    ]
    for piece in pieces:
        Reader.of(piece)  # tags close in order
        assert "<img src=x" not in piece
        assert '" onmouseover' not in piece


def test_switches_show_what_is_off():
    html = draw.head_switches(2, 3, Intervention(heads=((1, 3),), layers=1), {(2, 1): 0.4})
    assert html.count("cx-off") == 1
    assert 'data-layer="1" data-head="3"' in html.split("cx-off")[1][:60]
    assert html.count("cx-skipped") == 1
    assert "--cx-heat:1.000" in html


def test_charts_have_a_place_for_every_value():
    svg = line_chart([Series("a", [1, 2, 3], [5.0, float("nan"), 7.25])], "Title", mark=2)
    Reader.of(svg)
    assert svg.count('class="slot"') == 2
    assert "a: 7.25" in svg
    assert "no values yet" in line_chart([], "Title")
    Reader.of(line_chart([Series("flat", [0], [0.0], errors=[0.1])], "One point", percent=True))


def test_the_progress_of_a_run_is_read_while_it_is_written(toy_run, tmp_path):
    whole = read_progress(Run(toy_run))
    assert whole.finished
    assert whole.evaluations["top1"].iloc[-1] == pytest.approx(Run(toy_run).metrics["top1"])
    assert set(whole.layers["layer"]) == {1, 2, 3}
    lines = (toy_run / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "recipe.yaml").write_text((toy_run / "recipe.yaml").read_text())
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines[:6]) + "\n" + lines[6][:20])
    early = read_progress(Run(tmp_path))
    assert not early.finished
    assert early.step == json.loads(lines[5])["step"]
    started = Library([tmp_path])  # there is no model yet, and it can be watched
    assert (started.names(), started.runs()) == ([], [tmp_path.name])
