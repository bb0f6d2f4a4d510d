"""What the image tab shows, against direct computations."""

import base64
import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import codingrate as cr
import codingrate.explorer.library as library_module
from codingrate import inspection
from codingrate.explorer import ImageInput, Library, build_tab, draw, images
from codingrate.explorer.library import CURVES
from codingrate.explorer.tabs.image import EXPLAINED, ImageTab, read_event, start
from codingrate.inspection import Intervention
from codingrate.inspection.measure.sparse_units import codes
from tests.refusals import refused

NAME = "toy-digits"
NONE = Intervention()


@pytest.fixture(scope="module")
def entry(library):
    return library.entry(NAME)


@pytest.fixture(scope="module")
def image(library):
    return images.reference(library, NAME).images[5]


@pytest.fixture(scope="module")
def passed(library, image):
    return library.look(NAME, image)


@pytest.mark.parametrize("changes", [NONE, Intervention(heads=((1, 2), (3, 1)), sparsity=2.0)], ids=["none", "two"])
def test_predictions_show_both_probabilities(library, toy_run, image, changes):
    found, run = images.predict(library, NAME, image, changes, top=10), cr.Run(toy_run)
    for changed, name in ((changes, "probability"), (NONE, "before")):
        answers = (
            run.intervene(**changed.to_dict()).predict(image.picture)[0]
            if changed != NONE
            else run.predict(image.picture)[0]
        )
        expected = {one["label"]: one["score"] for one in answers}
        assert {one.label: getattr(one, name) for one in found} == pytest.approx(expected, abs=1e-6)
    assert (found[0].probability != found[0].before) == (changes != NONE)
    first = run.predict(image.picture)[0][0]["label"]
    assert first in [one.label for one in images.predict(library, NAME, image, changes, top=2)], "it stays visible"


@pytest.mark.parametrize("name", ["toy-digits", "toy-vit"])
def test_attention_of_a_patch_is_a_row_of_the_trace(library, image, name):
    entry, seen = library.entry(name), library.look(name, image)
    for layer, patch in ((0, 0), (2, 7), (1, 15)):
        expected = seen.attention(layer)[0, :, 1 + patch, 1:].double().numpy()
        np.testing.assert_allclose(images.patch_attention(seen, entry, layer, patch), expected, atol=1e-6)


def test_a_removed_atom_is_off(library, entry, image):
    seen = library.look(NAME, image)
    code = images.patch_code(seen, entry, 1, 4)
    np.testing.assert_allclose(code, codes(seen, 1)[0, 5].numpy(), atol=1e-6)
    atom = int(np.argmax(code)) + 1
    changed = library.look(NAME, image, Intervention(atoms=((2, atom),)))
    assert code[atom - 1] > 0
    assert images.patch_code(changed, entry, 1, 4)[atom - 1] == 0


@pytest.mark.parametrize("name", ["toy-digits", "toy-vit"])
def test_curves_are_those_of_layerwise(library, image, name):
    entry, sample = library.entry(name), images.reference(library, name)
    for fields in ({}, {"heads": ((2, 1),)}, {"heads": ((1, 1), (3, 2)), "layers": 2}, {"layers": 1}):
        changes = Intervention(**fields)
        ours = library.curves(name, image, changes)
        expected = inspection.layerwise(entry.changed(changes), [image.pixels(entry)])
        for column in ("layer", *CURVES):
            np.testing.assert_allclose(ours[column], expected[column], rtol=1e-5)
    means = inspection.layerwise(entry.model, [torch.cat([one.pixels(entry) for one in sample.images])])
    for column in CURVES:
        np.testing.assert_allclose(sample.table[column], means[column], rtol=1e-4)


def test_nearest_patches_are_those_of_largest_cosine(library, entry, image, passed):
    sample, layer, patch = images.reference(library, NAME), 1, 6
    code = images.patch_code(passed, entry, layer, patch)
    found = images.nearest_patches(sample, layer, code, count=6)
    best = found[0]
    assert (best.image, best.patch, best.cosine) == (5, patch, pytest.approx(1, abs=1e-5))
    for one in found:
        other = images.patch_code(library.look(NAME, sample.images[one.image]), entry, layer, one.patch)
        cosine = code @ other / (np.linalg.norm(code) * np.linalg.norm(other))
        assert one.cosine == pytest.approx(cosine, abs=1e-5)
    rest = (sample.codes[layer] @ torch.nn.functional.normalize(torch.from_numpy(code), dim=0)).numpy()
    assert found[1].cosine == pytest.approx(np.sort(rest)[-2], abs=1e-6)


def test_component_colors_of_the_sample_are_those_of_pca_colors(library, entry):
    sample = images.reference(library, NAME)
    seen = inspection.trace(entry.model, torch.cat([one.pixels(entry) for one in sample.images]))
    expected, _ = inspection.pca_colors(seen.tokens[2], (4, 4))
    ours = images.component_colors(library.look(NAME, sample.images[3]), entry, sample, 1)
    np.testing.assert_allclose(ours, expected[3].reshape(-1, 3), atol=1e-4)


def test_the_nearest_subspace_holds_most_of_a_token(library, entry, passed):
    z, bases = passed.attention_input(1)[0, 1:], passed.bases[1]
    energy = torch.stack([(z @ torch.linalg.qr(basis)[0]).square().sum(-1) for basis in bases])
    assert images.nearest_subspaces(passed, entry, 1).tolist() == energy.argmax(0).tolist()


def test_the_ranking_names_the_head_whose_loss_costs_most(library, image):
    table = images.important_heads(library, NAME, image)
    layer, head = int(table["layer"][0]), int(table["head"][0])
    found = images.predict(library, NAME, image, Intervention(heads=((layer, head),)), top=10)
    first = max(found, key=lambda one: one.before)
    assert first.before - first.probability == pytest.approx(table["drop"][0], abs=1e-6)


def test_equal_questions_cost_one_forward_pass(library, entry, image, monkeypatch):
    calls = []
    monkeypatch.setattr(library_module, "retrace", lambda *a: calls.append(a) or inspection.retrace(*a))
    changes = Intervention(step_size=1.75)
    for _ in range(3):
        images.predict(library, NAME, image, changes)
        library.curves(NAME, image, changes)
        images.patch_attention(library.look(NAME, image, changes), entry, 1, 3)
    assert len(calls) == 1


def test_the_same_picture_is_the_same_input(entry):
    picture = Image.new("RGB", (31, 17), (200, 10, 10))
    assert ImageInput.of(entry, picture) == ImageInput.of(entry, picture.copy())


def png(size=(9, 7), mode="RGB", **options):
    file = io.BytesIO()
    Image.new(mode, size).save(file, "PNG", **options)
    return file.getvalue()


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (SVG, "is not an image that can be read"),
        (b"", "is not an image that can be read"),
        (png()[:45], "evil.png: is damaged"),
        (png((1, 9)), "only 1 × 9 pixels"),
        (png((8000, 6000), "1"), "8,000 × 6,000 pixels; the limit is 40 million"),
        (bytes(images.UPLOAD_BYTES + 1), "10.0 MB; the limit is 10 MB"),
    ],
    ids=["svg", "empty", "cut", "thin", "pixels", "bytes"],
)
def test_bad_uploads_are_refused(content, words):
    refused(words, images.read_upload, content, "evil.png")


def test_an_upload_is_decoded_and_other_events_are_refused():
    sent = {"name": "a.png", "content": base64.b64encode(png()).decode(), "size": 99}
    assert read_event(SimpleNamespace(_data=sent)).size == images.read_upload(png(), "a.png").size == (9, 7)
    for data in ({**sent, "size": 2**30}, {**sent, "content": "%%%"}, None, [], {"content": 7}):
        refused("", read_event, SimpleNamespace(_data=data))


def test_what_excites_an_atom_are_the_patches_with_its_largest_values(library):
    sample, layer = images.reference(library, NAME), 1
    values = torch.stack([codes(library.look(NAME, one), layer)[0, 1:] for one in sample.images])  # (images, N, U)
    for atom in (0, 7, 23):
        best = [divmod(row, values.shape[1]) for row in sample.exciting[layer][atom].tolist()]
        found = [float(values[index, patch, atom]) for index, patch in best]
        assert found == pytest.approx(values[..., atom].flatten().topk(3).values.tolist(), abs=1e-5)
    tab = build_tab(lambda: ImageTab(library))
    atoms = tab.show_all(start(library, NAME))[tab.code]
    assert atoms.count("cx-frame") == 3 * min(EXPLAINED, atoms.count("data-atom")) > 0


def test_maps_say_how_close_to_uniform_they_are():
    html = draw.attention_grid("data:", np.stack([np.eye(16)[3], np.full(16, 1 / 16)]), (4, 4), 0, ())
    for figure, words in zip(html.split("<figure")[1:], (("0%", "100.0%"), ("100%", "6.2%")), strict=True):
        assert f">{words[0]} of uniform" in figure.replace("<br>", ">")
        assert f"{words[1]}</span>" in figure


def test_an_autoencoder_reconstructs_what_is_masked():
    name = "crate-cifar10-mae"
    library = Library([name])
    tab = build_tab(lambda: ImageTab(library))
    state = start(library, name)
    shown = tab.show_all(state)[tab.prediction]
    assert shown.count("<img") == 3
    found = images.reconstruct(library, name, state.image)
    expected = cr.Run(name).task.reconstruct(cr.Run(name).loaded(), [state.image.picture])
    assert found.losses == pytest.approx(expected.losses, rel=1e-4)
    assert f"loss {found.loss:.4f}" in shown
    changed = tab.change(state, Intervention(heads=((1, 1),)))
    assert "but not this" in changed[tab.prediction]
