"""Names on the Hugging Face hub, told from local paths."""

import pytest

from codingrate import _files
from codingrate._files import is_hub_id


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("owner", ["openai", "Owner-1", "a_b"])
@pytest.mark.parametrize("name", ["clip-vit", "v1.5", "x", "wikitext_2.raw-v1"])
def test_a_name_that_looks_local_is_never_a_hub_id(folder, owner, name):
    hub = f"{owner}/{name}"
    assert is_hub_id(hub)
    paths = [start + path for start in ("./", "../", "~/", "/") for path in (hub, name)]
    paths += [
        name,
        f"{hub}/",
        f"{hub}/more",
        f"{owner}\\{name}",
        f"{hub} 2",
        f"{owner}/.{name}",
        f".{hub}",
        f"{owner}//{name}",
    ]
    paths += [f"{part}/{name}" for local in _files._LOCAL_FOLDERS for part in (local, local.capitalize())]
    paths += [hub + end for suffix in _files._FILE_SUFFIXES for end in (suffix, suffix.upper())]
    assert [path for path in paths if is_hub_id(path)] == []
    for existing in (folder / owner, folder / owner / name):
        existing.mkdir()
        assert not is_hub_id(hub), "the folder exists, so the name may be mistyped"
