"""Conversions between the public edge (seconds, `timedelta`, aware `datetime`) and the integer
milliseconds used inside, with the errors that name option, value and bound."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone

from .errors import ValidationError
from .types import Duration

MAX_DURATION_MS = 36_500 * 86_400_000
"""36,500 days, the longest duration accepted anywhere."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_MAX_SECONDS = MAX_DURATION_MS / 1000


def shown(value: object) -> str:
    """A bounded `repr` for error texts that never raises."""
    try:
        text = repr(value)
    except Exception as error:  # foreign __repr__: an error text must not raise another error
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    if len(text) > 120:
        text = text[:117] + "..."
    return text.encode("utf-8", "backslashreplace").decode()


def to_ms(value: Duration, option: str, *, zero: bool = True) -> int:
    """The duration in milliseconds, rounded up.

    `zero` says whether 0 is legal. Raises `ValidationError` naming `option`, the value and the
    bound for anything that is no finite duration of 0 (or 1 ms) to 36,500 days.

    >>> to_ms(0.0701, "delay")
    71
    """
    if isinstance(value, timedelta):
        microseconds = value // _MICROSECOND
        ms = -(-microseconds // 1000) if microseconds >= 0 else -1
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValidationError(
            f"{option} must be seconds (int or float) or a timedelta, not {shown(value)}"
        )
    elif value < 0:
        raise ValidationError(f"{option} must not be negative, not {shown(value)}")
    elif not value <= _MAX_SECONDS:  # NaN and infinity end here too
        raise ValidationError(f"{option} must be at most 36,500 days, not {shown(value)} seconds")
    elif isinstance(value, int):
        ms = value * 1000
    else:
        # round() first: 0.07 s is 70 ms although 0.07 * 1000 is 70.00000000000001
        ms = math.ceil(round(value * 1000, 6))
        if ms == 0 and value > 0:
            ms = 1
    if ms < 0:
        raise ValidationError(f"{option} must not be negative, not {shown(value)}")
    if ms > MAX_DURATION_MS:
        raise ValidationError(f"{option} must be at most 36,500 days, not {shown(value)}")
    if ms == 0 and not zero:
        raise ValidationError(f"{option} must be at least 0.001 seconds, not {shown(value)}")
    return ms


def timeout_to_ms(value: Duration | None, option: str = "timeout") -> int | None:
    """Like `to_ms`; `None` stays `None` and means without end."""
    return None if value is None else to_ms(value, option)


def moment_to_ms(value: datetime, option: str) -> int:
    """The aware moment as epoch milliseconds, rounded up; a naive one is a `ValidationError`."""
    if not isinstance(value, datetime):
        raise ValidationError(f"{option} must be an aware datetime, not {shown(value)}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise ValidationError(
            f"{option} must carry a time zone, {shown(value)} has none: "
            "use datetime.now(timezone.utc) or value.astimezone()"
        )
    return -(-((value - _EPOCH) // _MICROSECOND) // 1000)


def ms_to_moment(ms: int) -> datetime:
    """Epoch milliseconds as an aware UTC `datetime`."""
    return _EPOCH + timedelta(milliseconds=ms)


def optional_moment(ms: int | None) -> datetime | None:
    """Like `ms_to_moment`; `None` stays `None`."""
    return None if ms is None else _EPOCH + timedelta(milliseconds=ms)
