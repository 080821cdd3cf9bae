"""How long a failed job waits before its next attempt."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ..durations import MAX_DURATION_MS, shown, to_ms
from ..errors import ValidationError
from ..sync import on_main_thread
from ..types import Duration

_log = logging.getLogger("bunqueue_py.backoff")


@dataclass(frozen=True)
class Backoff:
    """A rule for the wait between attempts; made by its three constructors.

    `custom` rules are functions of the application: they run outside every lock, and one that
    raises or returns no duration is logged and replaced by the default rule for that attempt.

    >>> Backoff.fixed(5).kind
    'fixed'
    """

    kind: str
    delay_ms: int = 0
    max_delay_ms: int = 0
    jitter: float = 0.0
    fn: Callable[[int, BaseException | str], Duration] | None = None

    @classmethod
    def exponential(
        cls, delay: Duration, max_delay: Duration = 3600, jitter: float = 0.5
    ) -> Backoff:
        """Before retry n waits `delay * 2**(n-1)`, times a factor drawn evenly from 1-jitter to
        1+jitter, and at most `max_delay`. `jitter` is 0 to 1."""
        return cls(
            "exponential",
            to_ms(delay, "backoff"),
            to_ms(max_delay, "max_delay"),
            _checked_jitter(jitter),
        )

    @classmethod
    def fixed(cls, delay: Duration, jitter: float = 0.2) -> Backoff:
        """Waits `delay` before every retry, times a factor drawn evenly from 1-jitter to
        1+jitter. `jitter` is 0 to 1."""
        return cls("fixed", to_ms(delay, "backoff"), MAX_DURATION_MS, _checked_jitter(jitter))

    @classmethod
    def custom(cls, fn: Callable[[int, BaseException | str], Duration]) -> Backoff:
        """Waits what `fn(attempt, error)` returns; `attempt` is the run that failed, from 1."""
        if not callable(fn):
            raise ValidationError(f"backoff: custom needs a function, not {shown(fn)}")
        return cls("custom", fn=fn)

    def wait_ms(self, retry: int, error: BaseException | str, draw: Callable[[], float]) -> int:
        """The wait before retry number `retry` (from 1), in milliseconds. `draw` gives [0, 1).
        Runs the application's function for `custom`: never call it under a lock."""
        if self.fn is not None:
            try:
                return to_ms(self.fn(retry, error), "backoff")
            except BaseException as broken:  # the application's: a broken rule must lose no job
                if isinstance(broken, KeyboardInterrupt) and on_main_thread():
                    raise
                _log.exception("the custom back-off failed on attempt %d; using the default", retry)
                return DEFAULT_BACKOFF.wait_ms(retry, error, draw)
        wait = self.delay_ms
        if self.kind == "exponential":
            # a shift of 48 already exceeds any cap, and keeps attempt 1000 from a huge integer
            wait <<= min(retry - 1, 48)
        if self.jitter:
            wait = round(wait * (1 - self.jitter + 2 * self.jitter * draw()))
        return min(wait, self.max_delay_ms)


def _checked_jitter(jitter: float) -> float:
    if isinstance(jitter, bool) or not isinstance(jitter, (int, float)) or not 0 <= jitter <= 1:
        raise ValidationError(f"jitter must be a number from 0 to 1, not {shown(jitter)}")
    return float(jitter)


DEFAULT_BACKOFF = Backoff.exponential(1)
