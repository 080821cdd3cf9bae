"""A clock that moves only when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from threading import Lock

from ..durations import moment_to_ms, ms_to_moment
from ..errors import BunqueueError, ValidationError

START = datetime(2030, 1, 1, tzinfo=timezone.utc)


class VirtualClock:
    """Stands still until `advance`. The wall clock can be set apart from the timeline.

    >>> clock = VirtualClock()
    >>> clock.advance(days=3)
    >>> clock.now.isoformat()
    '2030-01-04T00:00:00+00:00'
    """

    is_virtual = True

    def __init__(self, start: datetime = START) -> None:
        now = moment_to_ms(start, "start")
        #: by the timeline and by the wall; asked dozens of times a job, so without a function of
        #: ours
        self._moments = moments = [now, now]
        self.timeline_ms: Callable[[], int] = partial(moments.__getitem__, 0)
        self.wall_ms: Callable[[], int] = partial(moments.__getitem__, 1)
        self.elapsed_ns: Callable[[], int] = lambda: moments[0] * 1_000_000

    @property
    def now(self) -> datetime:
        """The timeline's moment."""
        return ms_to_moment(self._moments[0])

    def advance(self, **parts: float) -> None:
        """Moves the timeline and the wall clock forward by `timedelta(**parts)`."""
        # rounded up, as every duration is
        ms = -((-timedelta(**parts)) // timedelta(milliseconds=1))
        if ms < 0:
            raise ValidationError("the timeline never goes back; use set_wall_clock for that")
        self._pass(ms)

    def set_wall_clock(self, moment: datetime) -> None:
        """A jump of the wall clock alone."""
        self._moments[1] = moment_to_ms(moment, "moment")

    def _pass(self, ms: int) -> None:
        moments = self._moments
        moments[:] = moments[0] + ms, moments[1] + ms

    def effort(self) -> tuple[float, float]:
        """No time passes by itself, and no work costs any."""
        return self._moments[0], 0.0

    def wait(self, lock: Lock, timeout_ms: int | None) -> bool:
        """Takes the lock if it is free. Otherwise a wait on this clock could never end: raises
        at once and says so, unless its time is up already."""
        if lock.acquire(False):
            return True
        if timeout_ms is not None and timeout_ms <= 0:
            return False
        raise BunqueueError(
            "this wait can never end: the virtual clock stands still and nothing is due now. "
            "advance() the clock and run_pending() before waiting"
        )
