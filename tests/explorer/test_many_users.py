"""Many users at once: no error, no state of another user, and memory that does not grow.

EXPLORER_LOAD_ROUNDS sets how often each user goes through the image tab; 3 by default.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from codingrate.explorer import Library, draw, images
from codingrate.inspection import Intervention
from tests.explorer.serving import Client, serve

pytestmark = pytest.mark.slow

USERS = 32
ROUNDS = int(os.environ.get("EXPLORER_LOAD_ROUNDS", "3"))
GROWTH = 64 * 2**20  # bytes that the memory may grow by, after every user has been served once


def visit(library: Library, rounds: int, number: int, client: Client) -> list[str]:
    """Look at a sample image of one's own with a head of one's own switched off; return what is wrong."""
    layer, head = 1 + number % 3, 1 + number // 3 % 3
    image, problems = images.reference(library, "toy-digits").images[number], []

    def check(answer: dict, changes: Intervention) -> None:
        bars = draw.prediction_bars(images.predict(library, "toy-digits", image, changes), changes != Intervention())
        if bars not in answer.get("cx-prediction", ""):
            problems.append(answer.get("error", f"user {number} sees the answer of another one"))

    client.load("cx-picture")
    check(client.fire("cx-samples", "select", index=number), Intervention())
    for _ in range(rounds):
        for changes in (Intervention(heads=((layer, head),)), Intervention()):
            check(client.fire("cx-switches-atom", "select", layer=layer, head=head), changes)
            patch = client.fire("cx-picture", "select", patch=number % 16)
            if f'aria-label="sample {number + 1},' not in patch.get("cx-picture", ""):
                problems.append(f"user {number} sees another picture: {patch.get('error')}")
    return problems


def test_many_users_at_once(toy_run, tmp_path):
    library = Library([toy_run])
    images.reference(library, "toy-digits")
    with serve([toy_run], tmp_path) as server, ThreadPoolExecutor(USERS) as pool:
        first = Client(server.url)
        clients = [first, *(Client(server.url, first.config) for _ in range(USERS - 1))]
        memory, found = [], []
        for rounds in (1, ROUNDS):
            found += pool.map(partial(visit, library, rounds), range(USERS), clients)
            memory.append(server.memory)
        for client in clients:
            client.close()
    assert [problem for problems in found for problem in problems] == []
    assert memory[1] - memory[0] < GROWTH
