"""What every refusal must be: a CrateError of one line."""

from __future__ import annotations

from typing import Any

import pytest

from codingrate.errors import CrateError


def refused(message: str, call: Any, *args: Any, **kwargs: Any) -> str:
    """The line with which the call is refused, which holds `message` (plain text)."""
    with pytest.raises(CrateError) as caught:
        call(*args, **kwargs)
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    assert message in line
    return line
