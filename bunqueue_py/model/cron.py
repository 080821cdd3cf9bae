"""Cron expressions in time zones: the next moment that one means. The one module that imports the
cron library, which reads the fields and judges days; hours, and what becomes of them where the
clocks change, are worked out here."""

from __future__ import annotations

from bisect import bisect_left
from datetime import date, datetime, timedelta, timezone, tzinfo
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from ..durations import shown
from ..errors import CronError, ValidationError

if TYPE_CHECKING:
    from cronsim import CronSim

_DAY = 86_400
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MAX_YEARS = 50
"""The longest time between two 29ths of February that are Mondays is 40 years."""

_LONGEST_SHIFT = 26 * 3600
"""No clock was ever moved further: Kwajalein and Samoa left out a whole day."""

_PROBE = 6 * 3600
"""Two changes of one zone's clock are further apart."""

_LAST = (date.max.toordinal() - _EPOCH_DAY - 1) * _DAY
"""An instant of the calendar's last day but one."""

_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_FIELDS = ("second", "minute", "hour", "day-of-month", "month", "day-of-week")
_SIZES = (60, 60, 24, 31, 12, 7)
_MAX_TEXT = 256


class CronExpression:
    """A parsed expression in a time zone. Immutable but for what it remembers of its last answer,
    each in one tuple, so that any thread may ask.

    A fixed hour (`30 2 * * *`) is a time on the wall: one that the clocks jump over is the moment
    they jump to, and one that comes twice is the first of the two. An hour with `*` or `/` in it
    follows elapsed time: every match that there is on the wall, whatever the clocks do.

    Raises `CronError` naming the field, `ValidationError` for a time zone that is not known.
    """

    __slots__ = (
        "_day",
        "_follows",
        "_hours",
        "_last",
        "_minutes",
        "_run",
        "_seconds",
        "_sim",
        "_step",
        "_stretch",
        "_zone",
        "text",
        "tz",
    )

    def __init__(self, text: str, tz: str = "UTC") -> None:
        self._zone = _zone(tz)
        fields = _fields(text)
        self._sim = sim = _parsed(fields, text)
        self._seconds = sorted(sim.seconds)
        self._minutes = sorted(sim.minutes)
        self._hours = sorted(sim.hours)
        self._follows = "*" in fields[2] or "/" in fields[2]
        #: the day that was looked at last, by its number, and whether it has any times
        self._day = (-_EPOCH_DAY, date.min, False)
        #: a stretch of instants in which the clocks are not moved, and their offset there
        self._stretch = (0, -1, 0)
        #: seconds between two times of a day, where they are evenly spread, else 0; and the last
        #: time of a day, or of an hour of it
        self._step, self._last = _spread(self._hours, self._minutes, self._seconds)
        #: a first and a last answer, between which there is another one every so many seconds
        self._run = (0, -1, 1)
        self.text = text
        self.tz = tz

    def next_ms(self, after_ms: int) -> int | None:
        """The first moment after that one, both in epoch milliseconds; `None` if there is none in
        50 years."""
        after = after_ms // 1000
        first, last, step = self._run
        if first <= after < last:
            return (after + step - (after - first) % step) * 1000
        try:
            if self._zone is timezone.utc:
                found = self._next_on_wall(after)
                if found is not None and self._step:
                    self._note_run(found, 0, _LAST)
            elif self._follows:
                found = self._next_elapsed(after)
            else:
                found = self._next_fixed(after)
        except (OverflowError, ValueError, OSError):  # beyond the calendar, or the system's clock
            return None
        return None if found is None else found * 1000

    # -- on the wall, in seconds since midnight of 1970-01-01 there ------------------------------

    def _next_on_wall(self, after: int) -> int | None:
        """The first match after that second of a clock that is never moved."""
        days, second = divmod(after + 1, _DAY)
        known, day, has_times = self._day
        sim = self._sim
        if known != days:
            day = date.fromordinal(_EPOCH_DAY + days)
            has_times = day.month in sim.months and sim.match_day(day)
            self._day = days, day, has_times
        if has_times:
            found = self._time_from(second)
            if found is not None:
                return days * _DAY + found
        first = self._hours[0] * 3600 + self._minutes[0] * 60 + self._seconds[0]
        last_year = day.year + _MAX_YEARS
        day += timedelta(days=1)
        while True:
            if day.month not in sim.months:
                day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
                if day.year > last_year:
                    return None
            elif sim.match_day(day):
                return (day.toordinal() - _EPOCH_DAY) * _DAY + first
            else:
                day += timedelta(days=1)
                if day.year > last_year:
                    return None

    def _time_from(self, second: int) -> int | None:
        """The first time of a day from that second on; `None` if the day has no more."""
        hours, minutes, seconds = self._hours, self._minutes, self._seconds
        minute, s = divmod(second, 60)
        h, m = divmod(minute, 60)
        i = bisect_left(hours, h)
        if i < len(hours) and hours[i] == h:
            j = bisect_left(minutes, m)
            if j < len(minutes) and minutes[j] == m:
                k = bisect_left(seconds, s)
                if k < len(seconds):
                    return h * 3600 + m * 60 + seconds[k]
                j += 1
            if j < len(minutes):
                return h * 3600 + minutes[j] * 60 + seconds[0]
            i += 1
        if i < len(hours):
            return hours[i] * 3600 + minutes[0] * 60 + seconds[0]
        return None

    def _note_run(self, wall: int, offset: int, end: int) -> None:
        """Notes how far answers go on evenly from that one, on a clock that is not moved up to the
        instant `end`."""
        step = self._step
        last = wall - wall % _DAY + self._last
        if self._last < 3600:
            last = wall - wall % 3600 + self._last
        first = wall - offset
        self._run = first, first + (min(last - offset, end) - first) // step * step, step

    # -- where clocks are moved --------------------------------------------------------------

    def _next_elapsed(self, after: int) -> int | None:
        """Looks through stretches of one offset each, from `start` on."""
        begin, end, offset = self._stretch
        if begin <= after <= end:
            wall = self._next_on_wall(after + offset)
            if wall is not None and wall - offset <= end:
                if self._step:
                    self._note_run(wall, offset, end)
                return wall - offset
        start = after
        offset = self._offset(start)
        end = min(start + _PROBE, _LAST)
        if self._offset(end) == offset:
            self._stretch = start, end, offset
        while True:
            wall = self._next_on_wall(after + offset)
            if wall is None:
                return None
            found = wall - offset
            change = self._first_change(start, min(found, start + _LONGEST_SHIFT), offset)
            if change is not None:
                after, start = change - 1, change
            elif found - start > 2 * _LONGEST_SHIFT:
                # nothing on the wall in between, by whatever offset
                after = start = found - _LONGEST_SHIFT
            elif found - start > _LONGEST_SHIFT:
                change = self._first_change(start + _LONGEST_SHIFT, found, offset)
                if change is None:
                    return found
                after, start = change - 1, change
            else:
                return found
            offset = self._offset(start)

    def _next_fixed(self, after: int) -> int | None:
        moment = datetime.fromtimestamp(after, self._zone)
        wall = after + _seconds(moment)
        if moment.fold:
            # the second time round: what the hour names has been
            change = self._last_change(after)
            wall = max(wall, change + self._offset(change - 1) - 1)
        while True:
            found = self._next_on_wall(wall)
            if found is None:
                return None
            instant = self._instant(found)
            if instant > after:
                return instant
            wall = found

    def _instant(self, wall: int) -> int:
        """The instant of that second on the wall: the first of two, or when it is jumped over."""
        naive = datetime(1970, 1, 1) + timedelta(seconds=wall)
        before = _seconds(naive.replace(tzinfo=self._zone))
        if self._offset(wall - before) == before:
            return wall - before
        after = _seconds(naive.replace(tzinfo=self._zone, fold=1))
        return self._bisected(wall - after, wall - before)

    def _offset(self, instant: int) -> int:
        return _seconds(datetime.fromtimestamp(instant, self._zone))

    def _first_change(self, start: int, end: int, offset: int) -> int | None:
        """The first instant after `start`, where the offset is that one, up to `end`, at which it
        is another."""
        while start < end:
            probe = min(start + _PROBE, end)
            if self._offset(probe) != offset:
                return self._bisected(start, probe)
            start = probe
        return None

    def _last_change(self, end: int) -> int:
        """The last instant up to `end` at which the offset became another."""
        offset = self._offset(end)
        for probe in range(end - 3600, end - _LONGEST_SHIFT - 3600, -3600):
            if self._offset(probe) != offset:
                return self._bisected(probe, end)
        return end

    def _bisected(self, before: int, after: int) -> int:
        """The instant between the two at which the offset of the first ends."""
        offset = self._offset(before)
        while after - before > 1:
            middle = (before + after) // 2
            if self._offset(middle) == offset:
                before = middle
            else:
                after = middle
        return after


def _spread(hours: list[int], minutes: list[int], seconds: list[int]) -> tuple[int, int]:
    """How many seconds there are from each time of a day to the next, and the last of them; or of
    an hour, which is less than 3600. (0, 0) where that is not the same for all."""
    if len(minutes) == len(seconds) == 1:
        return _even(hours) * 3600, hours[-1] * 3600 + minutes[0] * 60 + seconds[0]
    step = _even(minutes) * 60
    if len(seconds) > 1:
        step = _even(seconds)
        # up to the end of the minute, and on in the next
        if len(minutes) > 1 and (len(minutes) < 60 or step * len(seconds) != 60):
            return 0, 0
    last = minutes[-1] * 60 + seconds[-1]
    if len(hours) == 24 and step * len(minutes) * len(seconds) == 3600:
        last += 23 * 3600
    return step, last


def _even(values: list[int]) -> int:
    """The difference between each and the next, 0 if it is not the same for all."""
    steps = {b - a for a, b in pairwise(values)}
    return steps.pop() if len(steps) == 1 else 0


def _seconds(moment: datetime) -> int:
    offset = moment.utcoffset()
    assert offset is not None
    return offset.days * _DAY + offset.seconds


def _zone(tz: Any) -> tzinfo:
    if not isinstance(tz, str) or not 0 < len(tz) <= _MAX_TEXT:
        raise ValidationError(f"tz must be the name of a time zone, not {shown(tz)}")
    if tz == "UTC":
        return timezone.utc
    try:
        return ZoneInfo(tz)
    except (LookupError, ValueError, OSError) as error:  # a folder of zones is an OSError
        raise ValidationError(
            f"tz must be the name of an IANA time zone such as 'Europe/Rome', not {shown(tz)}. If "
            "it is one, this system has no time zone data: pip install tzdata"
        ) from error


def _fields(text: Any) -> list[str]:
    """The six fields of an expression, in upper case."""
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        raise CronError(
            f"cron must be text of five or six fields, or a name such as '@daily', not "
            f"{shown(text)}",
            field="cron",
        )
    stripped = text.strip()
    if stripped.startswith("@"):
        if stripped.lower() not in _MACROS:
            raise CronError(
                f"cron must be fields or one of {', '.join(_MACROS)}, not {shown(text)}",
                field="cron",
            )
        stripped = _MACROS[stripped.lower()]
    fields = stripped.upper().split()
    if len(fields) == 5:
        fields.insert(0, "0")
    if len(fields) != 6 or not stripped.isascii():
        raise CronError(
            "cron must have five fields (minute, hour, day of the month, month, day of the week), "
            f"or six with seconds before them, not {shown(text)}",
            field="cron",
        )
    for name, size, field in zip(_FIELDS, _SIZES, fields, strict=True):
        for term in field.split(","):
            base, slash, step = term.partition("/")
            # the library takes a step of any size, and drops one of L
            if slash and (not step.isdigit() or not 0 < int(step) <= size or "L" in base):
                raise _bad(name, field, text)
    return fields


def _parsed(fields: list[str], text: str) -> CronSim:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise CronError(
            "cron expressions need the extra 'cron': pip install bunqueue-py[cron]. "
            "every= needs nothing",
            field="cron",
        ) from error
    try:
        sim = CronSim(" ".join(fields), datetime(2000, 1, 1))
    except CronSimError as error:
        name = str(error).removeprefix("Bad ")
        if name in _FIELDS:
            raise _bad(name, fields[_FIELDS.index(name)], text) from error
        raise CronError(f"cron: {error}: {shown(text)}", field="cron") from error
    except (ValueError, AssertionError, TypeError) as error:
        raise CronError(f"cron is not understood: {shown(text)}", field="cron") from error
    return sim


def _bad(name: str, field: str, text: str) -> CronError:
    return CronError(
        f"cron: the {name} field cannot be {shown(field)} in {shown(text)}", field=name
    )
