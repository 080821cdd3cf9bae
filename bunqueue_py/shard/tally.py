"""How many jobs of one queue ended, minute by minute, and how fast. Guarded.

Ends are counted by the queue's own totals, which cost one addition. What belongs to which second
and minute is found out by the first end after that second (`Tally.look`), so that the others pay
no more than one comparison.
"""

from __future__ import annotations

import binascii
import struct
import zlib

from ..model.figures import Throughput, Totals

MINUTE_MS = 60_000
TICK_MS = 1_000
FACTOR = 0.3
_MINUTES = 60
_HOUR_MS = MINUTE_MS * _MINUTES
_PACKED = struct.Struct("<120I")
_MOST = 0xFFFFFFFF
COMPLETED, FAILED = 0, 1
"""Which count of a minute that is."""


_NO_RATES = Throughput()
_tuple = tuple.__new__
_REST = [(1 - FACTOR) ** n for n in range(2_000)]
"""What is left of a rate after so many seconds in which nothing came; less than that is nothing."""


class Tally:
    """The counts of one queue. An hour that is over is one short text; the open one is a list of
    completed and failed for each of its minutes."""

    __slots__ = ("base", "closed", "hour", "looked_ms", "minutes", "next_ms", "rates")

    def __init__(self, totals: tuple[int, int, int], now: int) -> None:
        self.base = totals
        self.looked_ms = now
        #: when the second of the last look is over
        self.next_ms = (now // TICK_MS + 1) * TICK_MS
        self.hour = now // MINUTE_MS // _MINUTES
        #: empty until there is something to count
        self.minutes: list[int] = []
        #: hour number -> `packed` counts
        self.closed: dict[int, str] = {}
        self.rates = _NO_RATES

    def look(self, totals: tuple[int, int, int], now: int) -> int | None:
        """Everything counted since the last look ended in the second of that look. Returns the
        number of an hour that is over since then, if one is: its counts are in `closed`."""
        self._count(self.minutes, totals)
        self.rates = self.rates_at(totals, now)
        self.base, self.looked_ms = totals, now
        self.next_ms = now - now % TICK_MS + TICK_MS
        hour = now // _HOUR_MS
        if hour == self.hour:
            return None
        over, self.hour = self.hour, hour
        if any(self.minutes):
            self.closed[over] = packed(self.minutes)
        # an hour that a file brought along goes on
        self.minutes = unpacked(self.closed.pop(hour)) if hour in self.closed else []
        return over

    def _count(self, minutes: list[int], totals: tuple[int, int, int]) -> None:
        _, completed, failed = self.base
        completed, failed = totals[1] - completed, totals[2] - failed
        if completed or failed:
            if not minutes:
                minutes += [0] * (2 * _MINUTES)
            at = 2 * (self.looked_ms // MINUTE_MS % _MINUTES)
            minutes[at] += completed
            minutes[at + 1] += failed

    def rates_at(self, totals: tuple[int, int, int], now: int) -> Throughput:
        """The moving averages as of now; changes nothing, so readers do not disturb them."""
        ticks = now // TICK_MS - self.looked_ms // TICK_MS
        base, rates = self.base, self.rates
        if ticks <= 0 or (totals == base and rates is _NO_RATES):
            return rates
        rest = _REST[ticks - 1] if ticks <= len(_REST) else 0.0
        # ends came within the first of these ticks; adds may have come in any
        added, completed, failed = rates
        more, ended, lost = totals
        added_before, ended_before, lost_before = base
        even = (more - added_before) / ticks
        return _tuple(
            Throughput,
            (
                even + (added - even) * rest * (1 - FACTOR),
                (completed + (ended - ended_before - completed) * FACTOR) * rest,
                (failed + (lost - lost_before - failed) * FACTOR) * rest,
            ),
        )

    def rest(self, totals: Totals) -> bool:
        """Its queue is let go, and when it comes again counts from the beginning; says whether
        there is anything that is worth keeping."""
        self._count(self.minutes, totals)
        self.base, self.rates = (0, 0, 0), _NO_RATES
        return bool(self.closed) or any(self.minutes)

    def restore(self, hour: int, text: str) -> None:
        """Takes in an hour that a file has kept."""
        counts = unpacked(text)
        if hour == self.hour:
            self.minutes = [
                a + b for a, b in zip(self.minutes or [0] * len(counts), counts, strict=True)
            ]
        else:
            self.closed[hour] = text

    def forget_before(self, hour: int) -> list[int]:
        """Lets the hours before that one go, and returns them."""
        old = [known for known in self.closed if known < hour]
        for known in old:
            del self.closed[known]
        return old

    def open_points(self, kind: int, totals: Totals) -> list[tuple[int, int]]:
        """`points_of` the open hour, with what is counted and not looked at yet."""
        minutes = list(self.minutes)
        self._count(minutes, totals)
        return _points(kind, self.hour, minutes)

    @staticmethod
    def points_of(kind: int, hour: int, text: str) -> list[tuple[int, int]]:
        """(start of the minute in ms, count) of each minute of an hour that is over that has any.
        Changes nothing and needs no lock."""
        return _points(kind, hour, unpacked(text))

    def check(self) -> None:
        """Asserts its invariants."""
        assert len(self.minutes) in (0, 2 * _MINUTES), "an open hour"
        assert all(n >= 0 for n in self.minutes), "a count below none"
        assert self.hour not in self.closed, "an hour both open and over"


def _points(kind: int, hour: int, minutes: list[int]) -> list[tuple[int, int]]:
    return [
        ((hour * _MINUTES + i) * MINUTE_MS, minutes[2 * i + kind])
        for i in range(len(minutes) // 2)
        if minutes[2 * i + kind]
    ]


def packed(minutes: list[int]) -> str:
    """The counts of an hour as a short text; a few hundred hours of many queues are kept."""
    bounded = minutes if max(minutes) <= _MOST else [min(n, _MOST) for n in minutes]
    return binascii.b2a_base64(zlib.compress(_PACKED.pack(*bounded), 1), newline=False).decode()


def unpacked(text: str) -> list[int]:
    """What `packed` was given. Raises `ValueError`."""
    try:
        return list(_PACKED.unpack(zlib.decompress(binascii.a2b_base64(text))))
    except (zlib.error, struct.error) as error:
        raise ValueError(f"the counts of an hour are damaged: {error}") from error
