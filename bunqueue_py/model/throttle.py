"""Logging of errors that may come thousands of times a second."""

from __future__ import annotations

import logging
from collections.abc import Callable

from cachetools import TTLCache

from ..sync import LEAF, make_lock

PERIOD_MS = 60_000
_KINDS = 256


class LogThrottle:
    """Logs an error of each kind once a minute and says with the next one how many it swallowed.

    A kind is where it happened and the type of the exception. Safe from any thread.
    """

    def __init__(self, name: str, timeline_ms: Callable[[], int]) -> None:
        self._log = logging.getLogger(name)
        self._lock = make_lock(f"log {name}", LEAF)
        self._recent: TTLCache[tuple[str, type], bool] = TTLCache(
            _KINDS, PERIOD_MS, timer=timeline_ms
        )
        self._swallowed: dict[tuple[str, type], int] = {}

    def warning(self, message: str) -> None:
        """Logs a warning, at most once a minute for each text."""
        kind = (message.split(":")[0], Warning)
        with self._lock:
            if kind in self._recent:
                return
            self._recent[kind] = True
        self._log.warning("%s", message)

    def error(self, place: str, error: BaseException) -> None:
        """Logs the error with its traceback, unless one of its kind was logged just now."""
        kind = (place, type(error))
        with self._lock:
            if kind in self._recent:
                self._swallowed[kind] = self._swallowed.get(kind, 0) + 1
                return
            self._recent[kind] = True
            swallowed = self._swallowed.pop(kind, 0)
            if len(self._swallowed) > _KINDS:
                self._swallowed.clear()
        more = f" (and {swallowed:,} more of its kind since)" if swallowed else ""
        self._log.error("%s raised%s", place, more, exc_info=error)
