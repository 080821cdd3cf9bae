"""The one place that reads time. Everything else asks the `Clock` it was given."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Protocol

MAX_WAIT_MS = 60_000
"""Real waits are cut at this, so that a machine that slept catches up."""

LOOK_NS = 10_000_000
"""A suspension shows on the timeline at most this long, awake, after its end."""


class Clock(Protocol):
    """What the engine asks of time.

    `timeline_ms` never jumps and never goes back; the wall clock may. Both are epoch-like
    milliseconds, and both are plain callables so that the hot path pays no method lookup.
    """

    timeline_ms: Callable[[], int]
    wall_ms: Callable[[], int]

    elapsed_ns: Callable[[], int]
    """Elapsed time for short differences, in nanoseconds, at the best resolution there is."""

    def effort(self) -> tuple[float, float]:
        """Two running counts in milliseconds, for differences only: elapsed time, and the CPU
        time of the calling thread."""
        ...

    def wait(self, lock: Lock, timeout_ms: int | None) -> bool:
        """Blocks until `lock` can be acquired or the time has passed; says whether it was
        acquired. May return `False` early: callers look again. `None` means without end."""
        ...


class SystemClock:
    """Real time: the timeline is the wall clock at construction plus elapsed time, suspended time
    included where the system has `CLOCK_BOOTTIME`."""

    def __init__(self) -> None:
        wall_ns = time.time_ns
        boot = getattr(time, "CLOCK_BOOTTIME", None)
        elapsed_ns: Callable[[], int]
        if boot is None:
            elapsed_ns = time.monotonic_ns
            offset_ns = wall_ns() - elapsed_ns()

            def timeline_ms() -> int:
                return (elapsed_ns() + offset_ns) // 1_000_000
        else:
            clock_ns = time.clock_gettime_ns
            awake_ns = time.monotonic_ns
            start_ns = wall_ns() - clock_ns(boot)
            offset_ns = start_ns + clock_ns(boot) - awake_ns()
            look_ns = 0
            # one tuple, so that no thread sees the end of one millisecond with the number of
            # another
            turn = (0, 0)

            def timeline_ms() -> int:
                now_ns = awake_ns()
                until_ns, moment = turn
                return moment if now_ns < until_ns else next_ms(now_ns)

            def next_ms(now_ns: int) -> int:
                # time awake is cheaper to read; how long the system was suspended is looked up
                # now and then. In this order, so that a thread that is held up between the two
                # readings finds too little, and never more than there was
                nonlocal offset_ns, look_ns, turn
                if now_ns >= look_ns:
                    found_ns = start_ns + clock_ns(boot) - awake_ns()
                    look_ns = now_ns + LOOK_NS
                    if found_ns > offset_ns:
                        offset_ns = found_ns
                moment = (now_ns + offset_ns) // 1_000_000
                turn = (min((moment + 1) * 1_000_000 - offset_ns, look_ns), moment)
                return moment

        self.timeline_ms: Callable[[], int] = timeline_ms
        self.wall_ms: Callable[[], int] = lambda: wall_ns() // 1_000_000
        self.elapsed_ns: Callable[[], int] = time.perf_counter_ns

    def effort(self) -> tuple[float, float]:
        """Elapsed time, and the CPU time of the calling thread."""
        return time.perf_counter() * 1000, time.thread_time() * 1000

    def wait(self, lock: Lock, timeout_ms: int | None) -> bool:
        """Blocks on the lock itself, at most `MAX_WAIT_MS` at a time."""
        if timeout_ms is None or timeout_ms > MAX_WAIT_MS:
            timeout_ms = MAX_WAIT_MS
        if timeout_ms <= 0:
            return lock.acquire(False)
        return lock.acquire(True, timeout_ms / 1000)
