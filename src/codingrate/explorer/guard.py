"""The requests that the server answers: those of its own pages, to a host it knows. Others are refused in one line."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Message, Receive, Send], Awaitable[None]]

BODY_BYTES = 16 * 2**20
"""Largest body of a request: a picture of 10 MB in base64, and what is around it."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
API = "/gradio_api"
PAGES = ("/", "/config", "/theme.css", "/favicon.ico", "/robots.txt", "/manifest.json")
READ = (*PAGES, f"{API}/queue/data", f"{API}/info", f"{API}/app_id", f"{API}/startup-events")
READ_BELOW = ("/static/", "/assets/", "/svelte/", f"{API}/heartbeat/")
SENT = (f"{API}/queue/join", f"{API}/run/predict", f"{API}/cancel", f"{API}/reset")
"""Routes that pages use. Gradio has others, such as one that stores files; nothing in the explorer needs them."""

logger = logging.getLogger(__name__)


class Guard:
    """ASGI middleware that refuses what no page of the explorer asks for.

    A foreign page that reaches this machine under a name of its own (DNS rebinding) sends that name as the host; a
    foreign page that sends a form names its origin. `host` is the address that the server listens on. If it is every
    address of the machine (0.0.0.0 or ::), each address is accepted as a host, because a foreign page has a name.
    `names` are further hosts: those that a proxy passes on, or by which others know this machine.
    """

    def __init__(self, app: ASGIApp, host: str = "127.0.0.1", names: Iterable[str] = ()) -> None:
        self.app = app
        self.names = {name.lower() for name in names}
        self.hosts = {*LOOPBACK, host.strip("[]").lower(), *self.names}
        self.every_address = not self.hosts.isdisjoint(("0.0.0.0", "::"))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal, started, size = self.refusal(scope), False, 0

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > BODY_BYTES:  # of a body that did not say its length
                raise ValueError("the body is too large")
            return message

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or (message["type"] == "http.response.start" and message["status"] != 500)
            if started:  # a failure of gradio, with status 500, is answered below
                await send(message)

        if refusal is None:
            refusal = 400, "the request does not fit this app"
            try:
                await self.app(scope, bounded, watched)
            except Exception as error:  # gradio raises errors of many types if a request does not fit
                logger.info("%s %s: %r", scope["method"], scope["path"], error)
        if not started:
            status, words = refusal
            await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": f"{words}\n".encode()})

    def refusal(self, scope: Message) -> tuple[int, str] | None:
        """Return the status and the line with which a request is refused, or None."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host, origin, length = (headers.get(name) for name in ("host", "origin", "content-length"))
        if not self.knows(_split(f"//{host}")[0]):
            return 403, "this host is not known; allow its name when the explorer is started (allow-host)"
        if origin is not None and _split(origin) != _split(f"//{host}") and _split(origin)[0] not in self.names:
            return 403, "requests of other sites are refused"
        path, reads = scope["path"].removeprefix(scope.get("root_path", "")), scope["method"] in ("GET", "HEAD")
        if not (path.startswith(READ_BELOW) or path in READ if reads else path in SENT and scope["method"] == "POST"):
            return 404, "there is nothing here"
        if length is not None and not (length.isdecimal() and int(length) <= BODY_BYTES):
            return 413, f"the request is larger than {BODY_BYTES // 2**20} MB"
        return None

    def knows(self, host: str) -> bool:
        """Return whether the server was started on a host."""
        return host in self.hosts or (self.every_address and _is_address(host))


def _split(address: str) -> tuple[str, int | None]:
    """Return host and port of an address, or an empty host if it is none."""
    try:
        parts = urlsplit(address)
        return parts.hostname or "", parts.port
    except ValueError:
        return "", None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
