"""The next run is always ahead, the first there is, and matches unless a gap moved it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bunqueue_py.model.cron import CronExpression
from tests.cron_oracle import DAYS, MONTHS, fields_of, following, has_day, values

ZONES = sorted(available_timezones() - {"localtime", "Factory"})


@cache
def changes(tz: str) -> tuple[int, ...]:
    """About when the clocks of the zone are moved, from 1970 to 2100, in epoch seconds."""
    zone = ZoneInfo(tz)
    found = []
    start, week = 0, 7 * 86_400
    offset = datetime.fromtimestamp(0, zone).utcoffset()
    for moment in range(start, 4_102_444_800, week):
        other = datetime.fromtimestamp(moment, zone).utcoffset()
        if other != offset:
            low, high = moment - week, moment
            while high - low > 1:
                middle = (low + high) // 2
                if datetime.fromtimestamp(middle, zone).utcoffset() == offset:
                    low = middle
                else:
                    high = middle
            found.append(high)
            offset = other
    return tuple(found)


def field(low: int, high: int, names: list[str] | None = None) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    plain = number.map(str)
    span = st.tuples(number, number).map(lambda ends: f"{min(ends)}-{max(ends)}")
    step = st.tuples(st.sampled_from(["*", f"{low}-{high}", str(low)]), st.integers(1, high)).map(
        lambda parts: f"{parts[0]}/{parts[1]}"
    )
    terms = [plain, span, step]
    if names:
        terms.append(st.sampled_from(names))
    return st.one_of(st.just("*"), st.lists(st.one_of(terms), min_size=1, max_size=3).map(",".join))


expressions = st.tuples(
    field(0, 59), field(0, 23), field(1, 28), field(1, 12, MONTHS), field(0, 7, DAYS)
).map(" ".join) | st.tuples(
    st.sampled_from(["0", "30", "*/20", "59"]), field(0, 59), field(0, 23), st.just("* * *")
).map(" ".join)


@st.composite
def places(draw: st.DrawFn) -> tuple[str, datetime]:
    """A zone, and a moment within three hours of a change of its clocks, if it has any."""
    tz = draw(st.sampled_from(ZONES))
    known = changes(tz)
    middle = draw(st.sampled_from(known)) if known else draw(st.integers(0, 4_000_000_000))
    seconds = middle + draw(st.integers(-3 * 3600, 3 * 3600))
    return tz, datetime.fromtimestamp(max(0, seconds), timezone.utc)


@settings(max_examples=10)
@given(expressions, places())
def test_the_next_runs_are_ahead_ascending_and_match_unless_a_gap_moved_them(
    expression: str, place: tuple[str, datetime]
) -> None:
    """B041: random expressions, all zones, moments about the changes of their clocks."""
    look(expression, *place)


@pytest.mark.slow
def test_they_do_so_wherever_one_looks(slow_rounds: Callable[[int, int], int]) -> None:
    """B041, with more patience."""
    settings(max_examples=slow_rounds(100, 5_000))(given(expressions, places())(_look_at))()


def _look_at(expression: str, place: tuple[str, datetime]) -> None:
    look(expression, *place)


def look(expression: str, tz: str, after: datetime) -> None:
    zone = ZoneInfo(tz)
    cron = CronExpression(expression, tz)
    before = int(after.timestamp() * 1000)
    found = []
    moment: int | None = before
    for _ in range(6):
        assert moment is not None
        moment = cron.next_ms(moment)
        if moment is None:
            return
        assert moment > before, "not ahead"
        before = moment
        found.append(datetime.fromtimestamp(moment // 1000, timezone.utc))
    fields = fields_of(expression)
    bounds = ((0, 59), (0, 59), (0, 23))
    for instant in found:
        local = instant.astimezone(zone)
        parts = (local.second, local.minute, local.hour)
        fits = all(
            part in values(field, *ends, [])
            for part, field, ends in zip(parts, fields[:3], bounds, strict=True)
        )
        fits = fits and local.month in values(fields[4], 1, 12, MONTHS)
        fits = fits and has_day(fields, local.date())
        moved = (instant - timedelta(seconds=1)).astimezone(zone).utcoffset() != local.utcoffset()
        assert fits or moved, f"{local} does not match, and the clock was not moved"
    days = (found[-1] - after).days + 4
    if days < 60:
        assert found == following(expression, tz, after, 6, days), "not the first there are"
