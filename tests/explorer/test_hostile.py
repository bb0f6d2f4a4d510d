"""Bad input over HTTP: a clear message, nothing else, and the app goes on."""

from __future__ import annotations

import base64
import contextlib
import struct
import zlib

import httpx
import pytest

from codingrate.explorer.guard import Guard
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


def upload(content: bytes, name: str = "picture.png") -> dict:
    return {"name": name, "content": base64.b64encode(content).decode(), "size": len(content)}


HUGE = 20_000
"""Side of a picture whose pixels take 400 MB, and its file less than one."""
BAD = [
    *(("cx-upload", "upload", [], upload(content), "is") for content in (SVG, png((40, 40))[:60], b"not a picture")),
    ("cx-upload", "upload", [], upload(SVG, "<img src=x onerror=alert(1)>.svg"), "&lt;img"),
    ("cx-read", "click", ["x" * 10**7], {}, "10,000,000 characters"),
    *(("cx-picture", "select", [], {"patch": patch}, "0 to 15") for patch in (-1, 10**9, "1", None)),
    ("cx-picture", "select", [], {}, "0 to 15"),
    ("cx-model", "input", ["/etc/passwd"], {}, ""),
    *(("cx-layer", "input", data, {}, "") for data in ([99, "picture"], ["x", "picture"], [None, 7])),
    ("cx-model", "input", [["toy-digits"]], {}, ""),
    ("cx-sigma", "input", [2, 60, 99, 50, "attention (MSSA)", 0.5, True, 0.05, True, 0], {}, ""),
    ("cx-reset-atom", "click", [1, 2, 3, 4], {}, ""),
]
"""Events with values that do not fit, and words of the message that answers each."""


def test_values_that_do_not_fit_are_one_message_and_the_app_goes_on(server, client, quiet):
    client.load("cx-tokens")
    before, huge = server.memory, bomb(HUGE)
    assert len(huge) < 10 * 2**20
    for name, kind, data, details, words in [*BAD, ("cx-upload", "upload", [], upload(huge), "too many pixels")]:
        error = client.fire(name, kind, data, **details).get("error") or ""
        assert words in error
        assert "\n" not in error
        assert "<img" not in error
    assert server.memory - before < 100 * 2**20
    assert "cx-bar" in client.fire("cx-upload", "upload", **upload(png((30, 40))))["cx-prediction"]
    assert "cx-token" in client.fire("cx-read", "click", ["To be"])["cx-tokens"]


def test_files_elsewhere_are_refused(server):
    paths = (
        "/etc/passwd", "../../../../etc/passwd", "..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd",
        "/proc/self/environ", str(server.log), "explore.log", "file:///etc/passwd",
    )  # fmt: skip
    for prefix in ("/gradio_api/file=", "/file=", "/gradio_api/file/", "/static/", "/assets/", "/gradio_api/stream/"):
        for path in paths:
            answer = httpx.get(f"{server.url}{prefix}{path}", timeout=None)
            assert answer.status_code in (400, 403, 404, 405, 422), f"{prefix}{path}"
            assert "root:" not in answer.text
            assert "Running on" not in answer.text


EVERY = Guard(None, "0.0.0.0", ["box.example"])
OTHER = {"Origin": "http://evil.example"}


def event(client, **changes):
    """Return the body of an event that the page sends."""
    handler = client.dependency("cx-model", "input")
    body = {"data": [None, "toy-digits"], "fn_index": handler["id"], "session_hash": client.session}
    return {**body, **changes}


def join(server, **options):
    return httpx.post(f"{server.url}/gradio_api/queue/join", timeout=None, **options)


@pytest.fixture
def quiet(server):
    """The server writes no traceback during a test, and answers afterwards."""
    before = server.log.read_text().count("Traceback")
    yield
    assert httpx.get(f"{server.url}/config", timeout=None).status_code == 200
    assert server.log.read_text().count("Traceback") == before


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7860", "127.0.0.1.evil.example", "192.168.1.2", "[::", ""]
)
def test_a_foreign_host_gets_nothing(server, client, quiet, host):
    """A page whose name was made to lead to this machine (DNS rebinding) names itself as host and as origin."""
    headers = {"Host": host, "Origin": f"http://{host}"}
    for method, path in (("GET", "/"), ("GET", "/config"), ("OPTIONS", "/config"), ("POST", "/gradio_api/queue/join")):
        asks = {"Access-Control-Request-Method": "POST"} if method == "OPTIONS" else {}
        answer = httpx.request(method, server.url + path, headers={**headers, **asks})
        assert answer.status_code in (400, 403)
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert len(answer.text.splitlines()) == 1
    assert join(server, json=event(client), headers=headers).status_code in (400, 403)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "http://localhost.evil.example"]
)
def test_a_foreign_origin_changes_nothing(server, client, quiet, origin):
    headers = {"Origin": origin}
    assert join(server, json=event(client), headers=headers).status_code == 403
    assert join(server, json=event(client)).status_code == 200
    for path in ("cancel", "reset", "upload", "run/predict"):
        answer = httpx.post(f"{server.url}/gradio_api/{path}", json={}, headers=headers, timeout=None)
        assert answer.status_code == 403


def test_no_file_is_stored(server, quiet):
    for headers in ({}, OTHER):
        for size in (10, 11 * 2**20):
            sent = {"files": ("a.bin", bytes(size))}
            answer = httpx.post(f"{server.url}/gradio_api/upload", files=sent, headers=headers, timeout=None)
            assert answer.status_code in (403, 404)
    assert [path for path in (server.log.parent / "gradio").rglob("*") if path.is_file()] == []


def test_a_body_is_bounded(server, client, quiet):
    before, huge = server.memory, b"[" * (200 * 2**20)
    for content in (huge, (huge[start : start + 2**20] for start in range(0, len(huge), 2**20))):
        with contextlib.suppress(httpx.WriteError, httpx.ReadError):  # the server hangs up
            assert 400 <= join(server, content=content).status_code < 500
    assert server.memory - before < 100 * 2**20


def test_unknown_requests_are_one_line(server, client, quiet):
    """Whatever is asked, the answer is a refusal of one line; nothing is written to the log."""
    bodies = [
        {"json": body}
        for body in (
            {}, [], "x", event(client, fn_index=9999), event(client, fn_index=-1), event(client, fn_index="x"),
            event(client, fn_index=None), event(client, data="x"), event(client, data=None),
            event(client, session_hash=None), event(client, session_hash={}), event(client, event_data=7) | {"data": 1},
        )
    ]  # fmt: skip
    bodies += [{"content": content} for content in (b"{", b"\xff\xfe", b"[" * 100_000, b"")]
    routes = [
        ("POST", "queue/join"), ("POST", "run/predict"), ("POST", "cancel"), ("POST", "call/x"), ("POST", "run/x"),
        ("POST", "component_server"), ("PUT", "queue/join"), ("GET", "call/x/y"), ("GET", "dev/reload"),
        ("POST", "process_recording"), ("POST", "stream/x"), ("GET", "queue/data"), ("DELETE", "nothing"),
        ("GET", "run-history/buckets"),
    ]  # fmt: skip
    for method, route in routes:
        for body in bodies if method == "POST" else [{}]:
            answer = httpx.request(method, f"{server.url}/gradio_api/{route}", timeout=None, **body)
            assert 400 <= answer.status_code < 500, (method, route, body, answer.text)
            assert len(answer.text.splitlines()) <= 1


@pytest.mark.parametrize(
    ("guard", "host", "origin", "status"),
    [
        (EVERY, "192.168.1.2:7860", None, None), (EVERY, "[fe80::1]:7860", None, None),
        (EVERY, "BOX.example", None, None),
        (EVERY, "evil.example", None, 403), (EVERY, "192.168.1.2:7860", "http://evil.example", 403),
        (EVERY, "127.0.0.1:7860", "https://box.example", None),  # a proxy that names this machine
        (Guard(None, "192.168.1.2"), "192.168.1.2", None, None), (Guard(None), "192.168.1.2", None, 403),
    ],
)  # fmt: skip
def test_a_name_is_known_only_if_it_was_given(guard, host, origin, status):
    sent = {"host": host} | ({} if origin is None else {"origin": origin})
    headers = [(name.encode(), value.encode()) for name, value in sent.items()]
    refusal = guard.refusal({"method": "GET", "path": "/", "headers": headers})
    assert (refusal and refusal[0]) == status
