"""When something happens again and again: every so often, or as a cron expression says."""

from __future__ import annotations

from typing import Any

from ..durations import MAX_DURATION_MS, to_ms
from ..errors import CronError, ValidationError
from ..types import Duration
from .cron import CronExpression

CORRECTION_MS = 48 * 3_600_000
"""A wall clock that is set back by more than this had been wrong: its time is believed anew. Less,
and what has happened does not happen again."""


class Timing:
    """Either `every_ms`, along the timeline, or `cron` in the zone `tz`, by the wall clock.
    Immutable; the moments that it is given and returns are milliseconds of that clock."""

    __slots__ = ("_expression", "by_wall", "cron", "every_ms", "tz")

    def __init__(self, every_ms: int | None = None, cron: str = "", tz: str = "UTC") -> None:
        self.every_ms = every_ms
        #: whether it goes by the wall clock
        self.by_wall = every_ms is None
        self.cron = cron
        self.tz = tz
        self._expression: CronExpression | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timing) and self.parts() == other.parts()

    def __hash__(self) -> int:
        return hash(tuple(self.parts()))

    def __repr__(self) -> str:
        return f"Timing{tuple(self.parts())}"

    @property
    def expression(self) -> CronExpression:
        """The parsed expression. Raises `CronError` where the extra is missing, `ValidationError`
        where the zone is."""
        if self._expression is None:
            self._expression = CronExpression(self.cron, self.tz)
        return self._expression

    def next_ms(self, after_ms: int) -> int | None:
        """The next moment after that one; `None` if there is none."""
        every = self.every_ms
        if every is None:
            return (self._expression or self.expression).next_ms(after_ms)
        return after_ms + every

    def following(self, planned_ms: int, now_ms: int) -> int | None:
        """The moment after the planned one that is still ahead: what is past is passed over."""
        every = self.every_ms
        if every is None:
            return self.expression.next_ms(max(planned_ms, now_ms))
        if planned_ms < now_ms:
            return planned_ms + ((now_ms - planned_ms) // every + 1) * every
        return self.folded(planned_ms, now_ms) + every

    def folded(self, planned_ms: int, now_ms: int) -> int:
        """A moment of the same phase that is no more than a period ahead: a timeline that begins
        again at a clock which was set back must not wait for the old time."""
        assert self.every_ms is not None
        if planned_ms - now_ms <= self.every_ms:
            return planned_ms
        return now_ms + (planned_ms - now_ms) % self.every_ms

    def count(self, first_ms: int, until_ms: int, bound: int) -> int:
        """How many of its moments there are from `first_ms`, which is one, to `until_ms`; where
        they have to be gone through one by one, no more than `bound`."""
        if self.every_ms is not None:
            return max(0, until_ms - first_ms) // self.every_ms + 1
        n, moment = 1, self.expression.next_ms(first_ms)
        while moment is not None and moment <= until_ms and n < bound:
            n, moment = n + 1, self.expression.next_ms(moment)
        return n

    def parts(self) -> list[Any]:
        """What JSON can hold of it."""
        return [self.every_ms] if self.every_ms is not None else [self.cron, self.tz]


def timing_from(parts: Any) -> Timing:
    """What `parts` was made of. Raises `ValueError`; an expression is not looked at yet."""
    if len(parts) == 1:
        (every_ms,) = parts
        if every_ms.__class__ is not int or not 0 < every_ms <= MAX_DURATION_MS:
            raise ValueError("a period out of bounds")
        return Timing(every_ms)
    cron, tz = parts
    if cron.__class__ is not str or tz.__class__ is not str:
        raise ValueError("an expression that is no text")
    return Timing(None, cron, tz)


def checked_timing(every: Duration | None, cron: str | None, tz: str, what: str = "") -> Timing:
    """The timing that is asked for; `what` stands before the names of options in errors."""
    if (every is None) == (cron is None):
        raise ValidationError(f"{what}give either every or cron")
    if every is not None:
        if tz != "UTC":
            raise ValidationError(f"{what}tz is for cron: every follows elapsed time in any zone")
        return Timing(to_ms(every, f"{what}every", zero=False))
    assert cron is not None
    timing = Timing(None, cron, tz)
    # 2000 saw a 29th of February: what then has no moment in 50 years never has one
    if timing.expression.next_ms(0) is None:
        raise CronError(f"{what}cron has no moment at all: {cron!r}", field="cron")
    return timing
