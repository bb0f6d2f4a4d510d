"""Bad input over HTTP: a clear message, nothing else, and the app goes on."""

from __future__ import annotations

import base64
import struct
import zlib

import httpx
import pytest

from tests.explorer.conftest import TEXT
from tests.explorer.serving import Client, serve
from tests.explorer.test_images import SVG, png

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(toy_run, tmp_path_factory):
    with serve([toy_run, TEXT], tmp_path_factory.mktemp("hostile")) as running:
        yield running


@pytest.fixture
def client(server):
    one = Client(server.url)
    one.load("cx-picture")
    yield one
    one.close()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(side: int) -> bytes:
    """A valid PNG of side × side black pixels, written row by row."""
    packer = zlib.compressobj(9)
    rows = b"".join([*(packer.compress(bytes(1 + side)) for _ in range(side)), packer.flush()])
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def send(client, content: bytes, name: str = "picture.png") -> dict:
    encoded = base64.b64encode(content).decode()
    return client.fire("cx-upload", "upload", name=name, content=encoded, size=len(content))


def test_pictures_that_are_none(server, client):
    before = server.memory
    huge = bomb(20_000)
    assert len(huge) < 10 * 2**20
    for content, words in (
        (huge, "too many pixels"),
        (SVG, "is not an image that can be read"),
        (png((40, 40))[:60], "is damaged"),
        (b"not a picture", "is not an image that can be read"),
    ):
        assert words in send(client, content)["error"]
    assert server.memory - before < 100 * 2**20
    assert "cx-bar" in send(client, png((30, 40)))["cx-prediction"]


def test_names_in_messages_are_text(client):
    error = send(client, SVG, "<img src=x onerror=alert(1)>.svg")["error"]
    assert "&lt;img" in error
    assert "<img" not in error


def test_a_text_of_ten_megabytes(client):
    client.load("cx-tokens")
    refusal = client.fire("cx-read", "click", ["x" * 10**7])
    assert refusal["error"] == "The text has 10,000,000 characters; the limit is 4,000. Shorten it"
    assert "cx-token" in client.fire("cx-read", "click", ["To be"])["cx-tokens"]


@pytest.mark.parametrize(
    "data", [{}, {"patch": -1}, {"patch": 10**9}, {"patch": "1"}, {"patch": None}, {"patch": 1e400}]
)
def test_patches_that_are_none(client, data):
    answer = client.fire("cx-picture", "select", **({} if data.get("patch") == float("inf") else data))
    assert "is not a number from 0 to 15" in answer["error"]


def test_models_that_are_none(client):
    answer = client.fire("cx-model", "input", ["/etc/passwd"])
    assert "error" in answer


def test_files_elsewhere_are_refused(server):
    paths = (
        "/etc/passwd", "../../../../etc/passwd", "..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd",
        "/proc/self/environ", str(server.log), "explore.log", "file:///etc/passwd",
    )  # fmt: skip
    for prefix in ("/gradio_api/file=", "/file=", "/gradio_api/file/", "/static/", "/assets/", "/gradio_api/stream/"):
        for path in paths:
            answer = httpx.get(f"{server.url}{prefix}{path}", timeout=30)
            assert answer.status_code in (400, 403, 404, 405, 422), f"{prefix}{path}"
            assert "root:" not in answer.text
            assert "Running on" not in answer.text


def test_large_files_are_not_stored(server):
    answer = httpx.post(f"{server.url}/gradio_api/upload", files={"files": ("a.bin", bytes(11 * 2**20))}, timeout=60)
    assert answer.status_code == 413
