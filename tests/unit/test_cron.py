"""Cron expressions: a table of what they mean, worked out the long way, and what is refused."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter

from bunqueue_py import BunqueueError, CronError, ValidationError
from bunqueue_py.model.cron import CronExpression
from bunqueue_py.testing import SeededIds
from tests.cron_oracle import MACROS, following

TABLE = Path(__file__).with_name("cron_table.txt")
ROWS = [
    tuple(part.strip() for part in line.split("|"))
    for line in TABLE.read_text(encoding="utf-8").splitlines()
]
"""expression, zone, from (UTC), the next five in the zone"""


def moments(expression: str, tz: str, after: datetime, n: int) -> list[datetime]:
    cron = CronExpression(expression, tz)
    found: list[datetime] = []
    moment: int | None = int(after.timestamp() * 1000)
    while len(found) < n:
        assert moment is not None
        moment = cron.next_ms(moment)
        assert moment is not None
        found.append(datetime.fromtimestamp(moment / 1000, timezone.utc))
    return found


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta | None:
    return moment.astimezone(zone).utcoffset()


def start_of(row: tuple[str, ...]) -> datetime:
    return datetime.fromisoformat(row[2]).replace(tzinfo=timezone.utc)


def expected(row: tuple[str, ...]) -> list[datetime]:
    return [datetime.fromisoformat(text) for text in row[3].split()]


@pytest.mark.parametrize("row", ROWS, ids=[" ".join(row[:3]) for row in ROWS])
def test_the_next_five_are_those_of_the_table(row: tuple[str, ...]) -> None:
    """B038: gaps and overlaps, with a rule."""
    found = moments(row[0], row[1], start_of(row), 5)
    assert found == expected(row)
    zone = ZoneInfo(row[1])
    offsets = [moment.astimezone(zone).utcoffset() for moment in found]
    assert offsets == [moment.utcoffset() for moment in expected(row)]


@pytest.mark.slow
def test_the_table_is_what_writing_down_every_time_of_every_day_gives() -> None:
    assert len(ROWS) >= 60
    for row in ROWS:
        wanted = expected(row)
        days = (wanted[-1] - start_of(row)).days + 5
        assert following(row[0], row[1], start_of(row), 5, days) == wanted, row


def test_another_library_says_the_same_where_no_clock_is_moved() -> None:
    """croniter has other rules for gaps and overlaps, and so is asked where there are none."""
    compared = 0
    for row in ROWS:
        wanted, zone = expected(row), ZoneInfo(row[1])
        local = start_of(row).astimezone(zone)
        step = timedelta(hours=12)
        spans = (wanted[-1] - start_of(row)) // step + 3
        if spans > 600:
            if row[1] not in ("UTC", "Asia/Kathmandu", "Asia/Tokyo"):
                continue
        elif len({_offset(start_of(row) + step * i, zone) for i in range(-2, spans)}) > 1:
            continue
        fields = MACROS.get(row[0], row[0]).split()
        if len(fields) == 6:  # that library has the seconds at the end
            fields = [*fields[1:], fields[0]]
        theirs = croniter(" ".join(fields), local.replace(tzinfo=None), implement_cron_bug=True)
        found = [theirs.get_next(datetime) for _ in wanted]
        assert found == [moment.replace(tzinfo=None) for moment in wanted], row
        compared += 1
    assert compared >= 30


def test_what_comes_up_daily_comes_once_a_local_day_for_years() -> None:
    """B040: 400 runs on 400 dates, also in the outermost zones and over the date line."""
    start = datetime(2011, 6, 1, tzinfo=timezone.utc)
    for tz in ("US/Pacific", "Pacific/Kiritimati", "Etc/GMT+12", "Pacific/Apia", "Europe/Rome"):
        zone = ZoneInfo(tz)
        for expression in ("0 0 * * *", "30 2 * * *"):
            found = moments(expression, tz, start, 400)
            dates = [moment.astimezone(zone).date() for moment in found]
            # Samoa had no 30th of December in 2011: what was to be on it was on the 31st too
            twice = tz == "Pacific/Apia" and expression != "0 0 * * *"
            assert len(set(dates)) == 400 - twice
            gaps = [b - a for a, b in pairwise(dates)]
            assert gaps.count(timedelta(days=2)) == (tz == "Pacific/Apia")
            assert max(gaps) <= timedelta(days=2)


BAD = [
    ("", "cron"),
    ("   ", "cron"),
    ("*", "cron"),
    ("* * * *", "cron"),
    ("* * * * * * *", "cron"),
    ("@reboot", "cron"),
    ("@", "cron"),
    ("@every 5m", "cron"),
    ("60 * * * *", "minute"),
    ("-1 * * * *", "minute"),
    ("61 * * * * *", "second"),
    ("* 24 * * *", "hour"),
    ("* * 0 * *", "day-of-month"),
    ("* * 32 * *", "day-of-month"),
    ("* * * 0 *", "month"),
    ("* * * 13 *", "month"),
    ("* * * FOO *", "month"),
    ("* * * * 8", "day-of-week"),
    ("* * * * MONDAY", "day-of-week"),
    ("0 0 31 2 *", "day-of-month"),
    ("0 0 30 FEB *", "day-of-month"),
    ("0 0 31 4,6,9,11 *", "day-of-month"),
    ("5-1 * * * *", "minute"),
    ("* * * * FRI-MON", "day-of-week"),
    ("*/0 * * * *", "minute"),
    ("*/61 * * * *", "minute"),
    ("*/-2 * * * *", "minute"),
    ("*/x * * * *", "minute"),
    ("*/ * * * *", "minute"),
    ("1, * * * *", "minute"),
    (",1 * * * *", "minute"),
    ("1- * * * *", "minute"),
    ("1-2-3 * * * *", "minute"),
    ("1.5 * * * *", "minute"),
    ("1/2/3 * * * *", "minute"),
    ("? * * * *", "minute"),
    ("* * L/2 * *", "day-of-month"),
    ("* * * * MON#6", "day-of-week"),
    ("* * * * L", "day-of-week"),
    ("٣ * * * *", "cron"),
    ("0 0 * * *\0", "day-of-week"),
    ("* " * 200, "cron"),
    (5, "cron"),
    (b"* * * * *", "cron"),
    (["*"] * 5, "cron"),
]


@pytest.mark.parametrize(("text", "field"), BAD, ids=[repr(text)[:40] for text, _ in BAD])
def test_a_malformed_expression_is_refused_and_the_field_named(text: str, field: str) -> None:
    with pytest.raises(CronError) as caught:
        CronExpression(text)
    assert caught.value.field == field
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, BunqueueError)
    if field != "cron":
        assert f"the {field} field" in str(caught.value)


@pytest.mark.parametrize(
    "tz", ["Mars/Olympus", "", "Europe", "../etc/passwd", "/etc/localtime", 5, None, "x" * 999]
)
def test_an_unknown_zone_is_refused_and_named(tz: str) -> None:
    with pytest.raises(ValidationError, match=r"^tz must be the name of a"):
        CronExpression("* * * * *", tz)


def test_what_lies_beyond_the_standard_fields_is_as_the_guide_says() -> None:
    start = datetime(2025, 1, 1, tzinfo=timezone.utc)
    assert [m.day for m in moments("0 0 LW * *", "UTC", start, 3)] == [31, 28, 31]
    assert [m.day for m in moments("0 0 * * MON#2", "UTC", start, 3)] == [13, 10, 10]
    assert [m.day for m in moments("0 0 * * 5L", "UTC", start, 3)] == [31, 28, 28]
    assert moments("0 0 * 2 MON#5", "UTC", start, 1) == [datetime(2044, 2, 29, tzinfo=timezone.utc)]


def test_the_end_of_the_calendar_is_no_error() -> None:
    last = int(datetime(9999, 12, 31, 23, 59, 30, tzinfo=timezone.utc).timestamp() * 1000)
    for tz in ("UTC", "Europe/Rome"):
        for expression in ("* * * * *", "0 0 * * *", "0 0 1 1 *"):
            assert CronExpression(expression, tz).next_ms(last) is None


def test_without_the_extra_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(CronError, match=r"pip install bunqueue-py\[cron\]"):
        CronExpression("* * * * *")


@pytest.mark.parametrize("tz", ["UTC", "Europe/Rome", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize(
    "expression",
    [
        "* * * * *",
        "0 */2 * * *",
        "*/20 2 * * MON",
        "0 0 29 2 *",
        "*/15 * * * * *",
        "30 7-52/5 * * * *",
        "*/10 5 */6 * * *",
        "*/7 * * * *",
    ],
)
def test_what_it_remembers_of_its_last_answer_changes_no_other(expression: str, tz: str) -> None:
    asked_before = CronExpression(expression, tz)
    dice = SeededIds(len(expression + tz)).random
    # the epoch, days on which clocks are moved, and the end of the calendar
    places = [0, 1901152800, 1901235600, 1917738000, 1920382200, 253402300799 - 90_000]
    for _ in range(25):
        place = places[int(dice() * len(places))]
        after = (place + int((dice() - 0.5) * 180_000)) * 1000
        for _ in range(4):
            found = asked_before.next_ms(after)
            assert found == CronExpression(expression, tz).next_ms(after), after
            after = after if found is None else found


@pytest.mark.parametrize("hours", [5, 7, 9])
@pytest.mark.parametrize(
    ("expression", "tz", "change"),
    [
        ("0 */2 * * *", "Europe/Rome", datetime(2030, 3, 31, 1, tzinfo=timezone.utc)),
        ("0 */2 * * *", "Europe/Rome", datetime(2030, 10, 27, 1, tzinfo=timezone.utc)),
        ("30 */3 * * *", "America/New_York", datetime(2030, 3, 10, 7, tzinfo=timezone.utc)),
        ("*/20 * * * *", "Australia/Lord_Howe", datetime(2030, 4, 6, 15, tzinfo=timezone.utc)),
        ("*/20 * * * *", "Australia/Lord_Howe", datetime(2030, 10, 5, 15, 30, tzinfo=timezone.utc)),
    ],
)
def test_an_even_run_of_times_ends_where_the_clocks_are_moved(
    expression: str, tz: str, change: datetime, hours: int
) -> None:
    asked_before = CronExpression(expression, tz)
    after = int((change - timedelta(hours=hours)).timestamp() * 1000)
    for _ in range(40):
        found = asked_before.next_ms(after)
        assert found == CronExpression(expression, tz).next_ms(after), after
        assert found is not None
        after = found
