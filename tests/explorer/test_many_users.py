"""Many users at once: no error, no state of another user, and memory that does not grow.

EXPLORER_LOAD_SECONDS sets the time; 10 by default.
"""

from __future__ import annotations

import os
import threading
import time

import httpx
import pytest

from codingrate.explorer import Library, draw, images
from codingrate.inspection import Intervention
from tests.explorer.serving import Client, serve

pytestmark = pytest.mark.slow

USERS = 32
SECONDS = float(os.environ.get("EXPLORER_LOAD_SECONDS", "10"))
GROWTH = 64 * 2**20  # bytes that the memory may grow by, after every user has been served once


@pytest.fixture(scope="module")
def server(toy_run, tmp_path_factory):
    with serve([toy_run], tmp_path_factory.mktemp("many")) as running:
        yield running


class User(threading.Thread):
    """Looks at a sample image of its own with a head of its own switched off, and checks every answer."""

    def __init__(self, number: int, server, config, library: Library, end: float) -> None:
        super().__init__()
        self.number, self.end, self.answers, self.problems = number, end, 0, []
        self.client, self.library = Client(server.url, config), library
        self.head = (1 + number % 3, 1 + number // 3 % 3)
        self.image = images.reference(library, "toy-digits").images[number]
        self.ready = threading.Event()

    def expected(self, changes: Intervention) -> str:
        found = images.predict(self.library, "toy-digits", self.image, changes)
        return draw.prediction_bars(found, changes != Intervention())

    def check(self, answer: dict, changes: Intervention) -> None:
        self.answers += 1
        if "error" in answer:
            self.problems.append(answer["error"])
        elif self.expected(changes) not in answer["cx-prediction"]:
            self.problems.append(f"user {self.number} sees the answer of another one")

    def run(self) -> None:
        try:
            self.client.load("cx-picture")
            first = self.client.fire("cx-samples", "select", index=self.number)
            self.check(first, Intervention())
            self.ready.set()
            layer, head = self.head
            while time.monotonic() < self.end:
                for changes in (Intervention(heads=(self.head,)), Intervention()):
                    self.check(self.client.fire("cx-switches-atom", "select", layer=layer, head=head), changes)
                    patch = self.client.fire("cx-picture", "select", patch=self.number % 16)
                    self.answers += 1
                    if "error" in patch or f'aria-label="sample {self.number + 1},' not in patch["cx-picture"]:
                        self.problems.append(f"user {self.number} sees another picture: {patch.get('error')}")
        except Exception as error:  # the test reports it
            self.problems.append(repr(error))
        finally:
            self.ready.set()
            self.client.close()


def test_many_users_at_once(server, toy_run):
    library = Library([toy_run])
    images.reference(library, "toy-digits")
    config = httpx.get(f"{server.url}/config", timeout=30).json()
    end = time.monotonic() + SECONDS + 5
    users = [User(number, server, config, library, end) for number in range(USERS)]
    for user in users:
        user.start()
    for user in users:
        user.ready.wait(120)
    memory = [server.memory]
    while any(user.is_alive() for user in users):
        time.sleep(1)
        memory.append(server.memory)
    for user in users:
        user.join()
    answers = sum(user.answers for user in users)
    sizes = [size // 2**20 for size in memory[:: len(memory) // 6 + 1]]
    print(f"{answers} answers to {USERS} users in {SECONDS:.0f} s, memory {sizes} MiB")
    assert [problem for user in users for problem in user.problems] == []
    assert answers >= 3 * USERS
    assert max(memory[len(memory) // 2 :]) - memory[0] < GROWTH
