"""The built-in text: the chapters of the Python language reference that `help()` shows, shipped with CPython."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict

from ..errors import CrateError

SHARE = 0.1  # of the text that is held out


def pydoc_topics() -> tuple[list[str], list[str]]:
    """Training and validation topics, one document each; the text differs a little between versions of Python.

    Some topics are sections of others (`if` of `compound`), so topics that share a paragraph stay on one side: nothing
    that is measured was learnt. Which side depends on their names alone, so versions agree where their text does.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise CrateError(
            "this Python comes without pydoc_data; install its standard library, or name a text"
        ) from error
    budget = SHARE * sum(map(len, topics.values()))
    held: set[str] = set()
    for group in sorted(_groups(topics), key=_order):
        size = sum(len(topics[name]) for name in group)
        if size <= budget:
            held |= group
            budget -= size
    names = sorted(topics)
    return [topics[name] for name in names if name not in held], [topics[name] for name in names if name in held]


def _order(group: set[str]) -> str:
    return hashlib.sha256(min(group).encode()).hexdigest()


def _groups(topics: dict[str, str]) -> list[set[str]]:
    """Topics joined by the paragraphs they share; short ones ("See also:") join nothing."""
    of_paragraph: dict[str, set[str]] = defaultdict(set)
    for name, text in topics.items():
        for paragraph in re.split(r"\n\s*\n", text):
            words = " ".join(paragraph.split())
            if len(words) >= 60:
                of_paragraph[words].add(name)
    groups = {name: {name} for name in topics}
    for sharing in of_paragraph.values():
        joined = set().union(*(groups[name] for name in sharing))
        groups.update(dict.fromkeys(joined, joined))
    return list({id(group): group for group in groups.values()}.values())
