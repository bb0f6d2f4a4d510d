"""An explorer in a process of its own, and a client that speaks to it as a browser does."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx


def free_port() -> int:
    """Return a port that nothing listens to."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server:
    """`crate explore` in another process."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.log, self.url = process, log, f"http://127.0.0.1:{port}"

    def answers(self) -> bool:
        """Return whether the page is served."""
        try:
            return httpx.get(f"{self.url}/config", timeout=None).status_code == 200
        except httpx.HTTPError:
            return False

    @property
    def memory(self) -> int:
        """Resident memory in bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def serve(sources: list[str | Path], folder: Path) -> Iterator[Server]:
    """Start `crate explore` on a free port, wait until it answers, and end it."""
    port, log = free_port(), folder / "explore.log"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    environment["GRADIO_TEMP_DIR"] = str(folder / "gradio")
    command = [sys.executable, "-m", "codingrate", "explore", *map(str, sources), "--port", str(port)]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=folder)
    server = Server(process, port, log)
    try:
        while not server.answers():
            assert process.poll() is None, f"crate explore ended:\n{log.read_text()}"
            time.sleep(0.2)
        yield server
    finally:
        process.terminate()
        process.wait()


class Client:
    """One user: a session of its own, which sends events and reads their results."""

    def __init__(self, url: str, config: dict[str, Any] | None = None) -> None:
        self.url, self.session = url, uuid.uuid4().hex
        self.http = httpx.Client(timeout=None)
        self.config: dict[str, Any] = config or self.http.get(f"{url}/config").json()
        self.ids = {
            part["props"]["elem_id"]: part["id"] for part in self.config["components"] if part["props"].get("elem_id")
        }

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def dependency(self, name: str, event: str) -> dict[str, Any]:
        """Return the handler of an event of the component with an id in the page."""
        target = [self.ids.get(name), event]
        return next(one for one in self.config["dependencies"] if target in [list(t) for t in one["targets"]])

    def load(self, output: str) -> dict[str, Any]:
        """Open the page as far as one component of a tab, and return what is shown."""
        number = self.ids[output]
        found = (one for one in self.config["dependencies"] if any(event == "load" for _, event in one["targets"]))
        return self.send(next(one for one in found if number in one["outputs"]), [], None)

    def fire(self, name: str, event: str, data: list[Any] | None = None, /, **event_data: Any) -> dict[str, Any]:
        """Send an event; the inputs after the session's state are `data`."""
        return self.send(self.dependency(name, event), data or [], event_data or None)

    def send(self, handler: dict[str, Any], data: list[Any], event_data: Any) -> dict[str, Any]:
        """Join the queue and wait; return the output by the component's id in the page, or `error`."""
        states = [None] * (len(handler["inputs"]) - len(data))
        body = {
            "data": [*states, *data],
            "event_data": event_data,
            "fn_index": handler["id"],
            "trigger_id": None,
            "session_hash": self.session,
        }
        joined = self.http.post(f"{self.url}/gradio_api/queue/join", json=body)
        if joined.status_code != 200:
            return {"error": f"{joined.status_code} {joined.text}"}
        event = joined.json()["event_id"]
        with self.http.stream(
            "GET", f"{self.url}/gradio_api/queue/data", params={"session_hash": self.session}
        ) as lines:
            for line in lines.iter_lines():
                if not line.startswith("data:"):
                    continue
                message = json.loads(line[5:])
                if message.get("event_id") == event and message["msg"] == "process_completed":
                    return self._named(handler, message)
        return {"error": "the connection was closed"}

    def _named(self, handler: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
        output = message["output"]
        if not message["success"]:
            return {"error": output.get("error")}
        names = {number: name for name, number in self.ids.items()}
        values = zip(handler["outputs"], output["data"], strict=True)
        return {names[number]: value for number, value in values if number in names}
