"""How many jobs may start: at once, in a window of time, or not at all for a while. Guarded."""

from __future__ import annotations

from ..model.window import RateWindow

UNBOUNDED = 1 << 30


class Limits:
    """The limits of a queue or of a group; each may be absent."""

    __slots__ = ("concurrency", "cool_until_ms", "window", "window_ends_ms")

    def __init__(self) -> None:
        self.concurrency: int | None = None
        self.window: RateWindow | None = None
        self.window_ends_ms: int | None = None
        self.cool_until_ms = 0

    def room(self, active: int, now: int, default: int | None = None) -> int:
        """How many jobs may start now, beside those that are active. `default` is the
        concurrency where none is set."""
        if self.cool_until_ms > now:
            return 0
        bound = default if self.concurrency is None else self.concurrency
        room = UNBOUNDED if bound is None else max(0, bound - active)
        window = self.live_window(now)
        return room if window is None else min(room, max(0, window.room(now)))

    def live_window(self, now: int) -> RateWindow | None:
        """The rate limit, unless its time has passed."""
        if self.window_ends_ms is not None and self.window_ends_ms <= now:
            self.window = self.window_ends_ms = None
        return self.window

    def opens_ms(self, now: int) -> int | None:
        """When time alone makes room; `None` where it is not time that is waited for."""
        moments = []
        if self.cool_until_ms > now:
            moments.append(self.cool_until_ms)
        window = self.live_window(now)
        if window is not None and window.room(now) <= 0:
            opens = window.next_ms()
            if self.window_ends_ms is not None:
                opens = min(opens, self.window_ends_ms)
            moments.append(opens)
        return max(moments, default=None)

    def started(self, now: int) -> None:
        """A job starts now."""
        if self.window is not None:
            self.window.take(now)

    def set_window(self, max_starts: int, per_ms: int, ends_ms: int | None, now: int) -> None:
        """Sets the rate limit; what counts against the limit before it counts on."""
        window, before = RateWindow(max_starts, per_ms), self.live_window(now)
        if before is not None:
            # lets go what has left its window, whoever has looked since
            before.room(now)
            window.starts.extend(list(before.starts)[-max_starts:])
        self.window, self.window_ends_ms = window, ends_ms

    def clear_window(self) -> None:
        """Ends the rate limit."""
        self.window = self.window_ends_ms = None

    @property
    def is_bound(self) -> bool:
        """Whether there is a limit that stays, more than a cool-down."""
        return self.concurrency is not None or self.window is not None

    def ends_ms(self) -> int | None:
        """When all of it has passed; `None` if something stays until it is cleared."""
        if self.concurrency is not None or (
            self.window is not None and self.window_ends_ms is None
        ):
            return None
        return max(self.cool_until_ms, self.window_ends_ms or 0)

    def is_idle(self, now: int) -> bool:
        """Whether nothing is set that matters."""
        return (
            self.concurrency is None and self.live_window(now) is None and self.cool_until_ms <= now
        )

    def check(self) -> None:
        """Asserts its invariants."""
        if self.window is not None:
            self.window.check()
