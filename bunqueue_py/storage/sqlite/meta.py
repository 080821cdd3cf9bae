"""What of a job is not searched for, as parts of JSON: its options, its key, its history.

What reads it takes nothing on trust: the file may be damaged or edited by hand, and a value of the
wrong kind that came in would break the engine somewhere else. It raises `ValueError` and the like,
of which `RowDecoder` makes one error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring as quoted
from typing import Any, NamedTuple

from ...model.backoff import DEFAULT_BACKOFF, Backoff
from ...model.claim import REPLACE, SKIP
from ...model.failure import Failure
from ...model.import_path import ByPath, import_path
from ...model.job import WAITS_YET
from ...model.links import WAIT, LinksRow, check_edges
from ...model.options import OPTION_FIELDS, Keep, Options
from ...model.repeat import Plan, plan_from
from ...model.rows import ClaimRow, LetterRow, SideRow
from ...model.side import AttemptRow
from ...serializers import _make_encode
from ...types import FailureReason

encode = _make_encode()
"""`"".join(encode(value, 0))` is compact JSON."""

LIMIT = 1 << 44
"""Admission numbers and moments are below this: the ready queue packs them into one integer."""

_DEFAULT = Options()
# the bound on the timeline is the manager's setting, not the job's
_FIELDS = tuple(field for field in OPTION_FIELDS if field != "max_timeline")


# -- writing ---------------------------------------------------------------------------------------


def options_text(options: Options) -> str:
    """What is not as it is by default, as a JSON object; empty if nothing."""
    given: dict[str, Any] = {}
    for field in _FIELDS:
        value = getattr(options, field)
        if value != getattr(_DEFAULT, field):
            if isinstance(value, Keep):
                value = [value.count, value.age_ms]
            elif isinstance(value, Backoff):
                value = _backoff_parts(value)
            elif isinstance(value, Plan):
                value = value.parts()
            given[field] = value
    return "".join(encode(given, 0)) if given else ""


def _backoff_parts(rule: Backoff) -> list[Any]:
    if rule.fn is not None:
        # One without a path should have been refused (`checked_importable`); its jobs are kept, and
        # wait by the default rule after a restart.
        return ["custom", import_path(rule.fn)]
    return [rule.kind, rule.delay_ms, rule.max_delay_ms, rule.jitter]


def side_parts(side: SideRow) -> dict[str, Any]:
    """What is not as in a new `Side`. Of all stacks only that of the failure: nobody is shown those
    of earlier attempts, and each change of the job would write all of them again."""
    anchored, attempts, dlq_retries, failure, group, last_retry, letter, *rest = side
    progress, message, stalls, tags, timeline, trace, links = rest
    parts: dict[str, Any] = {}
    if anchored:
        parts["anchored"] = True
    if attempts:
        parts["attempts"] = [
            (row.attempt, row.started_ms, row.failed_ms, row.failure.reason, row.failure.error)
            for row in attempts
        ]
    if dlq_retries:
        parts["retries"] = dlq_retries
    if failure is not None:
        parts["failure"] = failure
    if group is not None:
        parts["group"] = group
    if last_retry is not None:
        parts["retried"] = last_retry
    if letter is not None:
        parts["letter"] = letter
    if progress:
        parts["progress"] = progress
    if message is not None:
        parts["message"] = message
    if stalls:
        parts["stalls"] = stalls
    if tags:
        parts["tags"] = tags
    if timeline is not None:
        parts["timeline"] = timeline
    if trace is not None:
        parts["trace"] = trace
    if links is not None:
        parts["links"] = links
    return parts


def side_text(side: SideRow) -> str:
    """`side_parts` as compact JSON."""
    timeline, links = side[11], side[13]
    if links is not None and side[:11] == _ONLY_TIES and side[12] is None:
        parent_id, on_failure, edges = links
        if timeline.__class__ is int and edges.__class__ is tuple:
            # Most jobs that have waited for others have nothing else: at half the price. A moment
            # that is yet to be told takes as much room as it will (see `rows._ROOM`)
            ties = ",".join([f"[{quoted(job_id)},{code}]" for job_id, code in edges])
            parent = "null" if parent_id is None else quoted(parent_id)
            return f'{{"timeline":{timeline:13},"links":[{parent},{on_failure},[{ties}]]}}'
    return "".join(encode(side_parts(side), 0))


class LoneTies(NamedTuple):
    """What `side_text` tells of jobs that have nothing but a tie to one other job each. Its parts
    follow one another: `begin`, a moment, `middle`, the other's id, `end`, a code and `last`."""

    begin: str
    moments: list[int]
    middle: str
    others: list[str]
    end: str
    codes: list[int]
    last: str


def lone_ties(sides: Sequence[SideRow | None]) -> LoneTies | None:
    """Those of a chain's jobs, whose texts are equally long; `None` if any is of another kind."""
    moments: list[int] = []
    others: list[str] = []
    codes: list[int] = []
    alike: tuple[str | None, int] | None = None
    for side in sides:
        if side is None or side[:11] != _ONLY_TIES or side[12] is not None:
            return None
        moment, links = side[11], side[13]
        if links is None or moment.__class__ is not int:
            return None
        parent_id, on_failure, edges = links
        if alike is None:
            alike = parent_id, on_failure
        if edges.__class__ is not tuple or len(edges) != 1 or alike != (parent_id, on_failure):
            return None
        other, code = edges[0]
        moments.append(moment)
        others.append(other)
        codes.append(code)
    if alike is None:
        return None
    parent, joined = "null" if alike[0] is None else quoted(alike[0]), "".join(others)
    if (
        quoted(joined) != f'"{joined}"'
        or not joined.isascii()
        or not parent.isascii()
        or not 10**12 <= min(moments) <= max(moments) < 10**13
    ):
        return None
    middle = f',"links":[{parent},{alike[1]},[["'
    return LoneTies('{"timeline":', moments, middle, others, '",', codes, "]]]}")


_ONLY_TIES = (False, (), 0, None, None, None, None, 0, None, 0, ())
"""The places of a `SideRow` before its timeline, of a job that has nothing there."""


# -- reading ---------------------------------------------------------------------------------------


def is_int(value: Any, low: int, high: int) -> bool:
    """Whether it is an int (no bool) from `low` to below `high`."""
    return value.__class__ is int and low <= value < high


def read_options(text: str, max_timeline: int) -> Options:
    """The options that `options_text` was given."""
    given = _checked(json.loads(text), dict)
    for field, value in given.items():
        given[field] = _READ[field](value)
    return Options(**given, max_timeline=max_timeline)


def read_claim(parts: Any) -> ClaimRow:
    """The claim of those parts."""
    key, ttl_ms, mode, held, until_ms = _checked(parts, list)
    _expect(key.__class__ is str and held.__class__ is bool)
    _expect(is_int(mode, SKIP, REPLACE + 1))
    return key, _moment_or_none(ttl_ms), mode, held, _moment_or_none(until_ms)


def read_side(parts: Any) -> SideRow:
    """The row that `side_parts` was given, but for the stacks that it left out."""
    get = _checked(parts, dict).pop
    side = (
        _checked(get("anchored", False), bool),
        tuple(map(_attempt, _checked(get("attempts", []), list))),
        _moment(get("retries", 0)),
        _failure(get("failure", None)),
        _text_or_none(get("group", None)),
        _moment_or_none(get("retried", None)),
        _letter(get("letter", None)),
        _progress(get("progress", 0)),
        _text_or_none(get("message", None)),
        _moment(get("stalls", 0)),
        tuple(_checked(tag, str) for tag in _checked(get("tags", []), list)),
        _timeline(get("timeline", None)),
        _text_or_none(get("trace", None)),
        _links(get("links", None)),
    )
    _expect(not parts)
    return side


def _expect(right: bool) -> None:
    if not right:
        raise ValueError("a value is not of its kind")


def _checked(value: Any, kind: type) -> Any:
    _expect(value.__class__ is kind)
    return value


def _moment(value: Any) -> int:
    _expect(is_int(value, 0, LIMIT))
    return value  # type: ignore[no-any-return]


def _moment_or_none(value: Any) -> int | None:
    return None if value is None else _moment(value)


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _checked(value, str)


def _progress(value: Any) -> int | float:
    _expect(value.__class__ in (int, float) and 0 <= value <= 100)
    return value  # type: ignore[no-any-return]


def _reason(value: Any) -> FailureReason:
    return FailureReason(_checked(value, str))


def _failure(parts: Any) -> Failure | None:
    if parts is None:
        return None
    reason, error, stack = _checked(parts, list)
    lines = tuple(_checked(line, str) for line in _checked(stack, list))
    return Failure(_reason(reason), _checked(error, str), lines)


def _attempt(parts: Any) -> AttemptRow:
    attempt, started_ms, failed_ms, reason, error = _checked(parts, list)
    failure = Failure(_reason(reason), _checked(error, str))
    return AttemptRow(_moment(attempt), _moment_or_none(started_ms), _moment(failed_ms), failure)


def _letter(parts: Any) -> LetterRow | None:
    if parts is None:
        return None
    since_ms, expires_ms, next_retry_ms, auto_retries = _checked(parts, list)
    return (
        _moment(since_ms),
        _moment_or_none(expires_ms),
        _moment_or_none(next_retry_ms),
        _moment(auto_retries),
    )


def _timeline(parts: Any) -> tuple[tuple[str, int], ...] | int | None:
    if parts is None or is_int(parts, WAITS_YET, LIMIT):
        return parts  # type: ignore[no-any-return]
    return tuple((_checked(step, str), _moment(at)) for step, at in _checked(parts, list))


def _links(parts: Any) -> LinksRow | None:
    if parts is None:
        return None
    parent_id, on_failure, edges = _checked(parts, list)
    _expect(is_int(on_failure, 0, WAIT + 1))
    if edges.__class__ is list:
        check_edges(edges)
        edges = tuple((job_id, code) for job_id, code in edges)
    else:
        _moment(edges)
    return _text_or_none(parent_id), on_failure, edges


def _backoff(parts: Any) -> Backoff:
    kind, *numbers = _checked(parts, list)
    if kind == "custom":
        (path,) = numbers
        return (
            DEFAULT_BACKOFF if path is None else Backoff("custom", fn=ByPath(_checked(path, str)))
        )
    _expect(kind in ("exponential", "fixed"))
    delay_ms, max_delay_ms, jitter = numbers
    _expect(jitter.__class__ in (int, float) and 0 <= jitter <= 1)
    return Backoff(kind, _moment(delay_ms), _moment(max_delay_ms), float(jitter))


def _keep(parts: Any) -> bool | Keep:
    if parts.__class__ is bool:
        return parts
    count, age_ms = _checked(parts, list)
    return Keep(_moment_or_none(count), _moment_or_none(age_ms))


_READ: dict[str, Callable[[Any], Any]] = {
    "attempts": _moment,
    "backoff": _backoff,
    "durable": lambda value: _checked(value, bool),
    "lifo": lambda value: _checked(value, bool),
    "remove_on_complete": _keep,
    "remove_on_fail": _keep,
    "repeat": plan_from,
    "stack_trace_limit": _moment,
    "stall_timeout_ms": _moment_or_none,
    "timeout_ms": _moment_or_none,
    "ttl_ms": _moment_or_none,
}
assert set(_READ) == set(_FIELDS), "an option that is not kept"
