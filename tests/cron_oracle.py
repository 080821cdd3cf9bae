"""What a cron expression means, worked out the long way: every time of every day is written down,
put on the clock of the zone, and sorted. Shares nothing with the code under test."""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta, timezone
from itertools import product
from zoneinfo import ZoneInfo

MONTHS = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split()
DAYS = "SUN MON TUE WED THU FRI SAT".split()
MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
BOUNDS = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def fields_of(expression: str) -> list[str]:
    fields = MACROS.get(expression, expression).upper().split()
    return fields if len(fields) == 6 else ["0", *fields]


def values(field: str, low: int, high: int, names: list[str]) -> set[int]:
    """The numbers that a field of numbers, ranges, lists, steps and names stands for."""
    found: set[int] = set()
    for term in field.split(","):
        base, _, step = term.partition("/")
        if base == "*":
            first, last = low, high
        else:
            ends = [names.index(e) + (low == 1) if e in names else int(e) for e in base.split("-")]
            first, last = ends[0], ends[-1] if len(ends) > 1 or not step else high
        found.update(range(first, last + 1, int(step or 1)))
    return found


def has_day(fields: list[str], day: date) -> bool:
    _, _, _, of_month, _, of_week = fields
    last = calendar.monthrange(day.year, day.month)[1]
    dom = day.day == last if of_month == "L" else day.day in values(of_month, 1, 31, [])
    dow = {d % 7 for d in values(of_week, 0, 7, DAYS)}
    matches_week = day.isoweekday() % 7 in dow
    if of_month.startswith("*") or of_week.startswith("*"):
        return dom and matches_week
    return dom or matches_week


def instants(naive: datetime, zone: ZoneInfo, *, elapsed: bool) -> Iterator[datetime]:
    """When that time on the wall is: never, once or twice; a fixed one always once."""
    for fold in (0, 1):
        instant = naive.replace(tzinfo=zone, fold=fold).astimezone(timezone.utc)
        if instant.astimezone(zone).replace(tzinfo=None) == naive:
            yield instant
            if not elapsed:
                return
    first = naive.replace(tzinfo=zone, fold=0)
    if (
        not elapsed
        and first.astimezone(timezone.utc).astimezone(zone).replace(tzinfo=None) != naive
    ):
        # jumped over: to the first second that there is, one after the other
        low = naive.replace(tzinfo=zone, fold=1).astimezone(timezone.utc)
        offset = low.astimezone(zone).utcoffset()
        while low.astimezone(zone).utcoffset() == offset:
            low += timedelta(seconds=60)
        while (low - timedelta(seconds=1)).astimezone(zone).utcoffset() != offset:
            low -= timedelta(seconds=1)
        yield low


def following(expression: str, tz: str, after: datetime, n: int, days: int) -> list[datetime]:
    """The first `n` moments after that one, of those within so many days."""
    zone = ZoneInfo(tz)
    fields = fields_of(expression)
    second, minute, hour, _, month, _ = fields
    months = values(month, 1, 12, MONTHS)
    times = [
        time(h, m, s)
        for h, m, s in product(
            sorted(values(hour, 0, 23, [])),
            sorted(values(minute, 0, 59, [])),
            sorted(values(second, 0, 59, [])),
        )
    ]
    elapsed = "*" in hour or "/" in hour
    day = after.astimezone(zone).date() - timedelta(days=2)
    end = day + timedelta(days=days + 2)
    found: set[datetime] = set()
    while day <= end:
        if day.month in months and has_day(fields, day):
            for at in times:
                found.update(instants(datetime.combine(day, at), zone, elapsed=elapsed))
            ahead = sorted(moment for moment in found if moment > after)
            # a day on, no clock is moved back behind these
            if len(ahead) >= n and ahead[n - 1].astimezone(zone).date() < day - timedelta(days=2):
                break
        day += timedelta(days=1)
    return sorted(moment for moment in found if moment > after)[:n]
