"""The options of a job: validated once, here, whichever way the job comes in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from typing_extensions import Unpack

from ..durations import shown, to_ms
from ..errors import ValidationError
from ..types import Deduplication, Duration, KeepJobs, Repeat
from .backoff import DEFAULT_BACKOFF, Backoff
from .checks import MAX_NAME
from .checks import checked_bool as checked_bool
from .checks import checked_int as checked_int
from .checks import checked_name as checked_name
from .checks import checked_queue_name as checked_queue_name
from .claim import AnyClaim
from .import_path import checked_importable
from .job_trace import TRACE
from .own import NAMED, Own, checked_key, own_options
from .repeat import Plan, checked_plan

MAX_PRIORITY = 1_000_000
MAX_BATCH = 100_000
_CACHE_SIZE = 1024
_NOTHING: tuple[Own | None, str | None, str | None, AnyClaim] = (None, None, None, None)

Resolved = tuple["Options", int, Own | None, str | None, str | None, AnyClaim]
"""The shared options, the priority, what is the job's own (`None` for nothing whatever), its
custom id, its deduplication key, and what it asks of that."""


class OtherOptions(TypedDict, total=False):
    """All of `JobOptions` but a job's names."""

    priority: int
    delay: Duration
    run_at: datetime
    attempts: int
    backoff: Duration | Backoff
    timeout: Duration | None
    ttl: Duration | None
    group: str | None
    group_limit: int | None
    lifo: bool
    remove_on_complete: bool | KeepJobs
    remove_on_fail: bool | KeepJobs
    tags: Sequence[str]
    stack_trace_limit: int
    stall_timeout: Duration | None
    durable: bool
    repeat: Repeat | None
    depends_on: Sequence[Any]
    on_dependency_failure: Literal["fail", "wait", "ignore"]


class JobOptions(OtherOptions, total=False):
    """Keyword arguments of `push` and `Queue.add`; every one is optional.

    `priority`: -1,000,000 to 1,000,000, higher first. `delay` or `run_at`: not before.
    `attempts`: runs in all, 1 to 1000. `backoff`: the wait between them (nothing to do with one
    attempt alone); a bare duration grows exponentially from it. `timeout`: longest one run may
    take. `ttl`: fails with `ttl_expired` if the first run has not started within it. `custom_id`:
    idempotent while a job of the queue with it is live. `deduplication`: a key that one job of the
    queue owns at a time. `group`: groups take turns; `group_limit`: `GroupFullError` where that
    many of the group wait already. `lifo`: before the FIFO jobs of equal priority.
    `remove_on_complete`, `remove_on_fail`: at once, or as `KeepJobs` says. `tags`: names for your
    own use. `stack_trace_limit`: lines kept of a traceback, 0 to 1000. `stall_timeout`: how long a
    run without a lock may be silent (`None`: the queue's interval). `durable`: it is on disk before
    the call that adds it returns, and so is its outcome before the call that ends it does; with
    memory storage there is no disk to wait for, and it changes nothing. `repeat`: each success
    plans the next run.
    """

    custom_id: str | None
    deduplication: Deduplication | None


@dataclass(frozen=True)
class Keep:
    """A `KeepJobs` with its age in milliseconds."""

    count: int | None
    age_ms: int | None


class Options:
    """The settings that many jobs share. Immutable, one object per distinct setting."""

    __slots__ = (
        "attempts",
        "backoff",
        "durable",
        "ends_plainly",
        "lifo",
        "is_plain",
        "max_timeline",
        "remove_on_complete",
        "remove_on_fail",
        "repeat",
        "runs_alone",
        "stack_trace_limit",
        "stall_timeout_ms",
        "timeout_ms",
        "ttl_ms",
    )

    def __init__(
        self,
        attempts: int = 3,
        backoff: Backoff = DEFAULT_BACKOFF,
        timeout_ms: int | None = None,
        ttl_ms: int | None = None,
        lifo: bool = False,
        remove_on_complete: bool | Keep = False,
        remove_on_fail: bool | Keep = False,
        stack_trace_limit: int = 10,
        max_timeline: int = 20,
        stall_timeout_ms: int | None = None,
        durable: bool = False,
        repeat: Plan | None = None,
    ) -> None:
        self.attempts = attempts
        self.backoff = backoff
        self.timeout_ms = timeout_ms
        self.ttl_ms = ttl_ms
        self.lifo = lifo
        #: whether a job with it comes in as any other of its priority, with nothing to mind
        self.is_plain = ttl_ms is None and not lifo
        #: whether a job with it may not wait in a batch: its time would run while it is not begun
        self.runs_alone = timeout_ms is not None or ttl_ms is not None
        self.remove_on_complete = remove_on_complete
        self.remove_on_fail = remove_on_fail
        self.stack_trace_limit = stack_trace_limit
        self.max_timeline = max_timeline
        self.stall_timeout_ms = stall_timeout_ms
        self.durable = durable
        #: of an admitted job: with where its run stands in it, so that each has options of its own
        self.repeat = repeat
        #: whether a completion with it only moves the job to the completed ones
        self.ends_plainly = repeat is None and remove_on_complete is False and not durable


_DERIVED = ("ends_plainly", "is_plain", "runs_alone")
OPTION_FIELDS = tuple(f for f in Options.__slots__ if f not in _DERIVED)
"""What an `Options` is made of."""


class JobSpec:
    """A job that is yet to be added: its name, data and options.

    >>> JobSpec("welcome", {"to": "ada@example.com"}, priority=5)
    JobSpec('welcome', {'to': 'ada@example.com'}, priority=5)
    """

    __slots__ = ("data", "name", "options", "origin")

    def __init__(self, name: str, data: Any = None, **options: Unpack[JobOptions]) -> None:
        if options and not _KNOWN.issuperset(options):
            raise TypeError(_unknown(options))
        self.name = name
        self.data = data
        self.options: dict[str, Any] = options  # type: ignore[assignment]
        #: the spec that it stands for, where a queue has added its defaults
        self.origin: JobSpec | None = None

    def __repr__(self) -> str:
        parts = [repr(self.name), shown(self.data)]
        parts += [f"{key}={shown(value)}" for key, value in self.options.items()]
        return f"JobSpec({', '.join(parts)})"


class OptionsCache:
    """Leaf noun: turns keyword arguments into shared `Options` objects, at most 1,024 of them.
    `persistent`: functions among them must be such as can be kept by name.

    Needs no lock: single dictionary operations, and a lost race builds one object twice.
    """

    __slots__ = ("_made", "_max_timeline", "_persistent", "default", "names")

    def __init__(self, max_timeline: int = 20, *, persistent: bool = False) -> None:
        self._max_timeline = max_timeline
        self._persistent = persistent
        self.default = Options(max_timeline=max_timeline)
        self._made: dict[tuple[Any, ...], Options] = {}
        self.names: dict[str, str] = {}

    def name(self, name: str, option: str = "name") -> str:
        """The checked name, one shared string object for equal names."""
        try:
            known = self.names.get(name)
        except TypeError:  # unhashable, so certainly no text
            known = None
        if known is None:
            known = checked_name(name, option)
            if len(self.names) >= _CACHE_SIZE:
                self.names.clear()
            self.names[known] = known
        return known

    def resolve(self, given: dict[str, Any], wall: Callable[[], int]) -> Resolved:
        """Validates `given`, which it consumes where that has more than one entry.

        `wall` tells wall-clock milliseconds, the base of the bound on `run_at`. Raises `TypeError`
        for an unknown option, `ValidationError` for a value out of bounds.
        """
        if len(given) == 1:
            if "custom_id" in given:
                custom_id = given["custom_id"]
                # most ids are seen to be good without a call of ours
                if (
                    custom_id.__class__ is str
                    and custom_id.isprintable()
                    and 0 < len(custom_id) <= MAX_NAME
                ):
                    return self.default, 0, NAMED, custom_id, None, None
            elif "deduplication" in given:
                key, claim = checked_key(given["deduplication"])
                return self.default, 0, NAMED, None, key, claim
            given = given.copy()
        priority = given.pop("priority", 0)
        if type(priority) is not int or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
            raise ValidationError(
                f"priority must be an int from -1,000,000 to 1,000,000, not {shown(priority)}"
            )
        if not given:
            return self.default, priority, None, None, None, None
        if len(given) == 1:
            # one setting besides: nothing of a job's own is among those that have been made
            ((option, value),) = given.items()
            try:
                known = self._made.get((option, value, value.__class__))
            except TypeError:
                known = None
            if known is not None:
                return known, priority, None, None, None, None
        own, custom_id, key, claim = (
            _NOTHING if _OWN.isdisjoint(given) else own_options(given, wall)
        )
        shared = self._settings(given) if given else self.default
        return shared, priority, own, custom_id, key, claim

    def _settings(self, given: dict[str, Any]) -> Options:
        """The one shared object for settings that are all of `given`."""
        try:
            # the types too: True == 1 == 1.0, and they are not equally welcome
            if len(given) == 1:
                ((option, value),) = given.items()
                key: tuple[Any, ...] = (option, value, value.__class__)
            else:
                key = (*given.items(), *map(type, given.values()))
            shared = self._made.get(key)
        except TypeError:  # an unhashable value: validate it the slow way, every time
            return self._shared(given)
        if shared is None:
            shared = self._shared(given)
            if len(self._made) >= _CACHE_SIZE:
                self._made.clear()
            self._made[key] = shared
        return shared

    def _shared(self, given: dict[str, Any]) -> Options:
        shared = _shared(given, self._max_timeline)
        if self._persistent and shared.backoff.fn is not None:
            checked_importable(shared.backoff.fn, "backoff")
        return shared

    def with_lifo(self, options: Options, lifo: bool) -> Options:
        """The same settings but for `lifo`, one shared object for each."""
        if options.lifo is lifo:
            return options
        key = (options, lifo)
        found = self._made.get(key)
        if found is None:
            found = changed(options, lifo=lifo)
            if len(self._made) >= _CACHE_SIZE:
                self._made.clear()
            self._made[key] = found
        return found


def changed(options: Options, **fields: Any) -> Options:
    """The same settings but for those fields."""
    given = {field: getattr(options, field) for field in OPTION_FIELDS}
    return Options(**{**given, **fields})


def check_known(options: Iterable[str]) -> None:
    """Raises the `TypeError` of an unknown keyword argument, naming it."""
    if not _KNOWN.issuperset(options):
        raise TypeError(_unknown(options))


def _unknown(options: Iterable[str]) -> str:
    names = ", ".join(repr(name) for name in options if name not in _KNOWN)
    return f"unknown job option {names}; the options are {', '.join(sorted(_KNOWN))}"


def _backoff(value: Any) -> Backoff:
    if isinstance(value, Backoff):
        return value
    if isinstance(value, (int, float, timedelta)):
        return Backoff.exponential(value)
    raise ValidationError(f"backoff must be a duration or a Backoff, not {shown(value)}")


def _keep(option: str) -> Callable[[Any], bool | Keep]:
    def check(value: Any) -> bool | Keep:
        if type(value) is bool:
            return value
        if not isinstance(value, KeepJobs):
            raise ValidationError(f"{option} must be True, False or KeepJobs, not {shown(value)}")
        count, age = value.count, value.age
        if count is None and age is None:
            raise ValidationError(f"{option}: KeepJobs needs a count, an age or both")
        return Keep(
            None if count is None else checked_int(count, f"{option}: count", 0, 1_000_000),
            None if age is None else to_ms(age, f"{option}: age"),
        )

    return check


def _positive(option: str) -> Callable[[Any], int | None]:
    return lambda value: None if value is None else to_ms(value, option, zero=False)


_SHARED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "attempts": ("attempts", lambda value: checked_int(value, "attempts", 1, 1000)),
    "backoff": ("backoff", _backoff),
    "timeout": ("timeout_ms", _positive("timeout")),
    "ttl": ("ttl_ms", _positive("ttl")),
    "lifo": ("lifo", lambda value: checked_bool(value, "lifo")),
    "remove_on_complete": ("remove_on_complete", _keep("remove_on_complete")),
    "remove_on_fail": ("remove_on_fail", _keep("remove_on_fail")),
    "stack_trace_limit": (
        "stack_trace_limit",
        lambda value: checked_int(value, "stack_trace_limit", 0, 1000),
    ),
    "stall_timeout": ("stall_timeout_ms", _positive("stall_timeout")),
    "durable": ("durable", lambda value: checked_bool(value, "durable")),
    "repeat": ("repeat", checked_plan),
}
_NAMED_OWN = (
    "delay",
    "run_at",
    "custom_id",
    "tags",
    "deduplication",
    "group",
    "group_limit",
    "depends_on",
    "on_dependency_failure",
)
_OWN = frozenset((*_NAMED_OWN, TRACE))
_KNOWN = frozenset((*_SHARED, *_NAMED_OWN, "priority"))


def _shared(given: dict[str, Any], max_timeline: int) -> Options:
    if not _KNOWN.issuperset(given):
        raise TypeError(_unknown(given))
    checked = {}
    for option, value in given.items():
        field, check = _SHARED[option]
        checked[field] = check(value)
    return Options(**checked, max_timeline=max_timeline)
