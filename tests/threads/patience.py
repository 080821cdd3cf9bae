"""How long a test of threads waits for what is to happen."""

import threading
import time
from collections.abc import Callable
from typing import Any

TIMEOUT = 10
"""Seconds; what comes at all comes in far less."""

_LONGEST_LOOK = 0.05


def until(condition: Callable[[], Any], what: str, seconds: float = TIMEOUT) -> None:
    """Gives way to other threads until the condition holds. A machine that stands still meanwhile
    takes nothing from their time."""
    left, last = float(seconds), time.monotonic()
    while not condition():
        now = time.monotonic()
        left -= min(now - last, _LONGEST_LOOK)
        last = now
        assert left > 0, f"never happened: {what}"
        threading.Event().wait(0.0005)
