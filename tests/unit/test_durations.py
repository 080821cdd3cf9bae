"""Seconds, `timedelta` and aware moments become whole milliseconds, or a clear refusal."""

import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction

import pytest

from bunqueue_py import BunqueueError, ValidationError
from bunqueue_py.durations import (
    MAX_DURATION_MS,
    moment_to_ms,
    ms_to_moment,
    optional_moment,
    shown,
    timeout_to_ms,
    to_ms,
)

UTC = timezone.utc
LONGEST = 36_500 * 86_400


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (0, 0),
        (0.0, 0),
        (-0.0, 0),
        (timedelta(0), 0),
        (1, 1000),
        (1.0, 1000),
        (1.5, 1500),
        (timedelta(seconds=1), 1000),
        (timedelta(minutes=2, milliseconds=3), 120_003),
        (LONGEST, MAX_DURATION_MS),
        (float(LONGEST), MAX_DURATION_MS),
        (timedelta(days=36_500), MAX_DURATION_MS),
    ],
)
def test_a_duration_is_seconds_or_a_timedelta(value: object, ms: int) -> None:
    result = to_ms(value, "delay")
    assert result == ms
    assert type(result) is int


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (0.0001, 1),
        (1e-9, 1),
        (5e-324, 1),
        (0.0011, 2),
        (1.0001, 1001),
        (timedelta(microseconds=1), 1),
        (timedelta(microseconds=1000), 1),
        (timedelta(microseconds=1001), 2),
    ],
)
def test_a_part_of_a_millisecond_is_rounded_up(value: object, ms: int) -> None:
    assert to_ms(value, "delay") == ms


def test_whole_milliseconds_given_as_a_float_are_not_rounded_up_by_their_last_bit() -> None:
    wrong = [ms for ms in range(0, 100_000, 7) if to_ms(ms / 1000, "delay") != ms]
    assert wrong == []


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        "5",
        b"5",
        None,
        [],
        {},
        object(),
        1j,
        Decimal(5),
        Fraction(1, 2),
        datetime(2030, 1, 1, tzinfo=UTC),
    ],
)
def test_what_is_no_number_and_no_timedelta_is_refused_with_its_name_and_value(
    value: object,
) -> None:
    with pytest.raises(ValidationError, match=r"^delay must be seconds") as caught:
        to_ms(value, "delay")
    assert shown(value) in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        1e300,
        10**400,
        1e9 * 365 * 86_400,
        LONGEST + 1,
        LONGEST + 0.001,
        timedelta(days=36_500, milliseconds=1),
        timedelta(days=36_500, microseconds=1),
        timedelta.max,
    ],
)
def test_more_than_36500_days_is_refused_and_the_bound_named(value: object) -> None:
    with pytest.raises(ValidationError, match=r"^timeout must be at most 36,500 days"):
        to_ms(value, "timeout")


@pytest.mark.parametrize(
    "value",
    [-1, -0.001, -1e-12, -5e-324, -math.inf, -1e300, -(10**400), timedelta.min,
     timedelta(microseconds=-1)],
)  # fmt: skip
def test_a_negative_duration_is_refused_however_small(value: object) -> None:
    with pytest.raises(ValidationError, match=r"^ttl must"):
        to_ms(value, "ttl")


@pytest.mark.parametrize("value", [0, 0.0, -0.0, timedelta(0)])
def test_zero_is_refused_where_it_is_not_legal_and_the_bound_named(value: object) -> None:
    with pytest.raises(ValidationError, match=r"^timeout must be at least 0\.001 seconds"):
        to_ms(value, "timeout", zero=False)


@pytest.mark.parametrize("value", [1e-9, 0.0001, 0.001, timedelta(microseconds=1)])
def test_what_rounds_up_to_a_millisecond_is_not_zero(value: object) -> None:
    assert to_ms(value, "timeout", zero=False) == 1


def test_a_refusal_is_a_value_error_of_the_library() -> None:
    with pytest.raises(BunqueueError) as caught:
        to_ms(-1, "delay")
    assert isinstance(caught.value, ValueError)


def test_a_timeout_of_none_stays_none_and_is_no_zero() -> None:
    assert timeout_to_ms(None) is None
    assert timeout_to_ms(0) == 0
    with pytest.raises(ValidationError, match="timeout"):
        timeout_to_ms(-1)


def test_a_moment_becomes_epoch_milliseconds_in_whatever_zone_it_is_given() -> None:
    moment = datetime(2030, 1, 1, 12, tzinfo=UTC)
    eastern = moment.astimezone(timezone(timedelta(hours=-5)))
    assert moment_to_ms(moment, "run_at") == moment_to_ms(eastern, "run_at") == 1_893_499_200_000


def test_a_moment_is_rounded_up_to_a_millisecond() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    base = moment_to_ms(moment, "run_at")
    assert moment_to_ms(moment + timedelta(microseconds=1), "run_at") == base + 1
    assert moment_to_ms(moment + timedelta(microseconds=1000), "run_at") == base + 1
    assert moment_to_ms(moment + timedelta(microseconds=1001), "run_at") == base + 2


def test_a_naive_moment_is_refused_and_the_way_out_named() -> None:
    with pytest.raises(ValidationError, match=r"^run_at must carry a time zone") as caught:
        moment_to_ms(datetime(2030, 1, 1), "run_at")
    assert "timezone.utc" in str(caught.value)


@pytest.mark.parametrize("value", [None, 5, 5.0, "2030-01-01", date(2030, 1, 1), timedelta(1)])
def test_what_is_no_datetime_is_refused_as_a_moment(value: object) -> None:
    with pytest.raises(ValidationError, match=r"^run_at must be an aware datetime"):
        moment_to_ms(value, "run_at")


@pytest.mark.parametrize("edge", [datetime.min, datetime.max])
@pytest.mark.parametrize("hours", [-14, 0, 14])
def test_the_edges_of_the_calendar_are_moments_too(edge: datetime, hours: int) -> None:
    moment = edge.replace(tzinfo=timezone(timedelta(hours=hours)))
    exact = (moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1)
    assert moment_to_ms(moment, "run_at") == pytest.approx(exact, abs=1)


def test_milliseconds_and_moments_lead_to_each_other() -> None:
    for ms in (0, 1, 999, 1_893_456_000_000, 4_102_444_800_123):
        moment = ms_to_moment(ms)
        assert moment.utcoffset() == timedelta(0)
        assert moment_to_ms(moment, "run_at") == ms
    assert optional_moment(None) is None
    assert optional_moment(0) == datetime(1970, 1, 1, tzinfo=UTC)


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    ["x" * 10_000, "\ud83d", Unprintable(), [10**5000], [[]] * 1000, "\0", {"k": "\udfff"}],
    ids=["long", "surrogate", "unprintable", "huge", "nested", "NUL", "inside"],
)
def test_a_value_is_shown_in_bounded_valid_text_whatever_it_is(value: object) -> None:
    text = shown(value)
    assert 0 < len(text) <= 160
    text.encode()


def test_an_unprintable_value_is_refused_like_any_other() -> None:
    with pytest.raises(ValidationError, match="Unprintable whose repr raised RuntimeError"):
        to_ms(Unprintable(), "delay")
