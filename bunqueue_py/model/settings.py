"""What a queue is told about stalls and dead letters: checked once, here, and kept as integers."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from ..durations import moment_to_ms, shown, to_ms
from ..errors import ValidationError
from ..types import DlqConfig, Duration, FailureReason, StallConfig
from .options import checked_bool, checked_int

MAX_LETTERS = 1_000_000
MAX_STALLS = 1_000_000
MAX_AUTO_RETRIES = 1000


class StallSettings(NamedTuple):
    """A `StallConfig` in milliseconds; `max_stalls` 0 means no bound."""

    enabled: bool = True
    interval_ms: int = 30_000
    max_stalls: int = 3
    grace_ms: int = 5_000


class DlqSettings(NamedTuple):
    """A `DlqConfig` in milliseconds; `max_age_ms` `None` means for good."""

    auto_retry: bool = False
    retry_interval_ms: int = 3_600_000
    max_retries: int = 3
    max_age_ms: int | None = 7 * 86_400_000
    max_entries: int = 10_000


class LetterFilter(NamedTuple):
    """Which dead letters are meant; `None` does not ask. `older_ms` and `newer_ms` are moments:
    entered at the one or before, entered after the other."""

    reason: str | None = None
    older_ms: int | None = None
    newer_ms: int | None = None
    retriable: bool | None = None


EVERY_LETTER = LetterFilter()


def stall_settings(
    enabled: object, interval: Duration, max_stalls: object, grace: Duration
) -> StallSettings:
    """The checked settings; `ValidationError` names the one that is out of bounds."""
    return StallSettings(
        checked_bool(enabled, "enabled"),
        to_ms(interval, "interval", zero=False),
        checked_int(max_stalls, "max_stalls", 0, MAX_STALLS),
        to_ms(grace, "grace"),
    )


def stall_config(settings: StallSettings) -> StallConfig:
    """The settings as users see them."""
    return StallConfig(
        settings.enabled,
        settings.interval_ms / 1000,
        settings.max_stalls,
        settings.grace_ms / 1000,
    )


def dlq_settings(
    auto_retry: object,
    retry_interval: Duration,
    max_retries: object,
    max_age: Duration | None,
    max_entries: object,
) -> DlqSettings:
    """The checked settings; `ValidationError` names the one that is out of bounds."""
    return DlqSettings(
        checked_bool(auto_retry, "auto_retry"),
        to_ms(retry_interval, "retry_interval", zero=False),
        checked_int(max_retries, "max_retries", 0, MAX_AUTO_RETRIES),
        None if max_age is None else to_ms(max_age, "max_age", zero=False),
        checked_int(max_entries, "max_entries", 1, MAX_LETTERS),
    )


def dlq_config(settings: DlqSettings) -> DlqConfig:
    """The settings as users see them."""
    age_ms = settings.max_age_ms
    return DlqConfig(
        settings.auto_retry,
        settings.retry_interval_ms / 1000,
        settings.max_retries,
        None if age_ms is None else age_ms / 1000,
        settings.max_entries,
    )


def letter_filter(
    reason: object,
    older_than: Duration | datetime | None,
    newer_than: Duration | datetime | None,
    retriable: object,
    now: int,
) -> LetterFilter:
    """The checked filter; an age is counted back from `now`."""
    if reason is not None:
        if not isinstance(reason, str) or reason not in _REASONS:
            raise ValidationError(
                f"reason must be one of {', '.join(sorted(_REASONS))}, not {shown(reason)}"
            )
        reason = str(FailureReason(reason))
    return LetterFilter(
        reason,
        _moment_ms(older_than, "older_than", now),
        _moment_ms(newer_than, "newer_than", now),
        None if retriable is None else checked_bool(retriable, "retriable"),
    )


_REASONS = frozenset(str(reason) for reason in FailureReason)


def _moment_ms(value: Duration | datetime | None, option: str, now: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        return moment_to_ms(value, option)
    return now - to_ms(value, option)
