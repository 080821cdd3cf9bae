"""The options that belong to one job alone: its names, its moment, its group and tags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..durations import MAX_DURATION_MS, moment_to_ms, shown, to_ms
from ..errors import ValidationError
from ..types import DEFAULT_HOLD, DEFAULT_MODE, Deduplication
from .checks import MAX_NAME, checked_int, checked_name
from .claim import EXTEND, REPLACE, SKIP, AnyClaim, Claim
from .job_trace import TRACE, checked_trace
from .links import FAIL, dependency_options

_MODES = {"skip": SKIP, "extend": EXTEND, "replace": REPLACE}


class Own(NamedTuple):
    """What belongs to one job alone, but for its custom id and its key. `run_at_wall_ms` is
    anchored to the wall clock; `depends_on` has ids, and `JobSpec`s of the same call."""

    delay_ms: int = 0
    run_at_wall_ms: int | None = None
    tags: tuple[str, ...] = ()
    group: str | None = None
    group_limit: int | None = None
    trace: str | None = None
    depends_on: tuple[object, ...] = ()
    on_dependency_failure: int = FAIL


NAMED = Own()
"""Of a job that has nothing else of its own than a custom id, a deduplication key, or both."""

Given = tuple[Own, str | None, str | None, AnyClaim]
"""What is a job's own, its custom id, its deduplication key, and what it asks of that."""


def own_options(given: dict[str, Any], wall: Callable[[], int]) -> Given:
    """Takes out of `given` what is a job's own, validated; `wall` as in `OptionsCache.resolve`."""
    delay = given.pop("delay", None)
    run_at = given.pop("run_at", None)
    if delay is not None and run_at is not None:
        raise ValidationError("give delay or run_at, not both")
    run_at_ms = None
    if run_at is not None:
        run_at_ms = max(0, moment_to_ms(run_at, "run_at"))
        if run_at_ms > wall() + MAX_DURATION_MS:
            raise ValidationError(
                f"run_at must be at most 36,500 days from now, not {shown(run_at)}"
            )
    custom_id = given.pop("custom_id", None)
    if custom_id is not None:
        custom_id = checked_name(custom_id, "custom_id")
    delay_ms = 0 if delay is None else to_ms(delay, "delay")
    tags = _tags(given.pop("tags", ()))
    key, claim = checked_key(given.pop("deduplication", None))
    group, limit = _group(given.pop("group", None), given.pop("group_limit", None))
    trace = checked_trace(given.pop(TRACE, None))
    depends_on: tuple[object, ...] = ()
    policy = FAIL
    if "depends_on" in given or "on_dependency_failure" in given:
        depends_on, policy = dependency_options(
            given.pop("depends_on", ()), given.pop("on_dependency_failure", "fail")
        )
    own = NAMED
    if (
        delay_ms
        or run_at_ms is not None
        or tags
        or group is not None
        or trace is not None
        or depends_on
    ):
        own = Own(delay_ms, run_at_ms, tags, group, limit, trace, depends_on, policy)
    return own, custom_id, key, claim


def checked_key(value: object) -> tuple[str | None, AnyClaim]:
    """The key of a `Deduplication`, and what it asks of that; nothing for `None`."""
    if value.__class__ is not Deduplication and not isinstance(value, Deduplication):
        if value is None:
            return None, None
        raise ValidationError(f"deduplication must be a Deduplication, not {shown(value)}")
    key, ttl, mode, hold = value._terms
    # most keys are seen to be good without a call of ours
    if key.__class__ is not str or not key.isprintable() or not 0 < len(key) <= MAX_NAME:
        key = checked_name(key, "deduplication: key")
    if ttl is None:
        if mode is DEFAULT_MODE and hold is DEFAULT_HOLD:
            return key, None
        ttl_ms = None
    elif ttl.__class__ is int and 0 < ttl <= 86_400:
        ttl_ms = ttl * 1000
        if mode is DEFAULT_MODE and hold is DEFAULT_HOLD:
            return key, ttl_ms
    else:
        ttl_ms = to_ms(ttl, "deduplication: ttl", zero=False)
    if not isinstance(mode, str) or mode not in _MODES:
        raise ValidationError(
            f"deduplication: mode must be 'skip', 'extend' or 'replace', not {shown(mode)}"
        )
    if not isinstance(hold, str) or hold not in ("live", "ttl"):
        raise ValidationError(f"deduplication: hold must be 'live' or 'ttl', not {shown(hold)}")
    held = hold == "ttl"
    if held and ttl_ms is None:
        raise ValidationError("deduplication: hold='ttl' needs a ttl, not None")
    return key, Claim(ttl_ms, _MODES[mode], held)


def _group(group: Any, limit: Any) -> tuple[str | None, int | None]:
    if group is not None:
        group = checked_name(group, "group")
    if limit is not None:
        checked_int(limit, "group_limit", 1, 1_000_000)
        if group is None:
            raise ValidationError("group_limit needs a group")
    return group, limit


def _tags(tags: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise ValidationError(f"tags must be a sequence of names, not {shown(tags)}")
    return tuple(checked_name(tag, f"tags[{i}]") for i, tag in enumerate(tags))
