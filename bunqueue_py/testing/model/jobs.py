"""What the reference model knows of one job and of one queue. Times are milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...durations import to_ms
from ...model.backoff import DEFAULT_BACKOFF, Backoff
from ...types import Deduplication, KeepJobs

PENDING, ACTIVE, COMPLETED, FAILED, GONE = "pending", "active", "completed", "failed", "gone"
KNOWN_TOKENS = 8
"""How many retired tokens a job knows (SPEC 5)."""
CONFIRM_MS = 5_000
"""So long a suspect may speak up (SPEC 6)."""


class Stalls(NamedTuple):
    """How a queue finds lost runs."""

    enabled: bool = True
    interval: int = 30_000
    max_stalls: int = 3
    grace: int = 5_000


class Dlq(NamedTuple):
    """How a queue keeps its dead letters."""

    auto_retry: bool = False
    retry_interval: int = 3_600_000
    max_retries: int = 3
    max_age: int | None = 7 * 86_400_000
    max_entries: int = 10_000


@dataclass
class Limits:
    """What bounds a queue, or one of its groups. `starts` are the moments of the starts since the
    rate limit was set; `rate` is (max, per, when it ends)."""

    paused: bool = False
    concurrency: int | None = None
    rate: tuple[int, int, int | None] | None = None
    starts: list[int] = field(default_factory=list)
    cool_until: int = 0

    def used(self, now: int) -> int:
        """How many started in the window that ends now."""
        if self.rate is None:
            return 0
        return sum(start + self.rate[1] > now for start in self.starts)

    def settle(self, now: int) -> None:
        """A rate limit whose time has passed is none."""
        if self.rate is not None and self.rate[2] is not None and self.rate[2] <= now:
            self.rate, self.starts = None, []

    def room(self, active: int, now: int) -> int:
        """How many more may start now."""
        self.settle(now)
        if self.paused or self.cool_until > now:
            return 0
        rooms = [1 << 30]
        if self.concurrency is not None:
            rooms.append(self.concurrency - active)
        if self.rate is not None:
            rooms.append(self.rate[0] - self.used(now))
        return max(0, min(rooms))

    def opens(self, now: int) -> int | None:
        """When time alone makes room; `None` if it is not time that is waited for."""
        self.settle(now)
        moments = [self.cool_until] if self.cool_until > now else []
        if self.rate is not None and self.used(now) >= self.rate[0]:
            most, per, ends = self.rate
            oldest = [start for start in self.starts if start + per > now][-most]
            moments.append(oldest + per if ends is None else min(oldest + per, ends))
        return max(moments, default=None)

    def started(self, now: int) -> None:
        """One more start."""
        if self.rate is not None:
            self.starts.append(now)

    def set_rate(self, now: int, most: int, per: int, ends: int | None) -> None:
        """Another rate limit; what the one before still counted counts on."""
        counted = []
        if self.rate is not None:
            counted = [start for start in self.starts if start + self.rate[1] > now]
        self.rate, self.starts = (most, per, ends), counted[-most:]

    def is_set(self, now: int) -> bool:
        """Whether anything of it matters."""
        self.settle(now)
        return bool(self.paused or self.concurrency or self.rate or self.cool_until > now)


@dataclass
class ModelQueue:
    """One queue. `counted` are the finished jobs that carry a count, oldest first; `passed_over`
    says of each group that could start a job which other groups have had a turn since."""

    name: str
    limits: Limits = field(default_factory=Limits)
    groups: dict[str, Limits] = field(default_factory=dict)
    stalls: Stalls = field(default_factory=Stalls)
    dlq: Dlq = field(default_factory=Dlq)
    counted: list[ModelJob] = field(default_factory=list)
    passed_over: dict[str, set[str]] = field(default_factory=dict)

    def group(self, name: str) -> Limits:
        """The limits of that group."""
        return self.groups.setdefault(name, Limits())


@dataclass(eq=False)
class ModelJob:
    """One job. `number` is its admission number; two with the same one may run in either order.
    `armed` says in which order its deadlines were set, among those of one moment. `looked_at`:
        when its lock is looked at next, however often it has been renewed until then. `vague`: the
        moment at which it became ready is not one that SPEC defines."""

    id: str
    queue: ModelQueue
    options: dict[str, Any]
    data: Any
    created: int
    number: int = 0
    state: str = PENDING
    priority: int = 0
    lifo: bool = False
    run_at: int = 0
    anchored: bool = False
    moved_from: int | None = None
    entered: int = 0
    vague: bool = False
    attempts_made: int = 0
    stalls: int = 0
    started: int | None = None
    owner: str | None = None
    token: str | None = None
    lease: int | None = None
    expires: int | None = None
    looked_at: int | None = None
    beat: int = 0
    suspected: int | None = None
    times_out: int | None = None
    last_token: str | None = None
    retired: list[tuple[str, bool]] = field(default_factory=list)
    reason: str | None = None
    error: str | None = None
    history: list[str] = field(default_factory=list)
    result: Any = None
    progress: float = 0
    key_until: int | None = None
    dead_since: int | None = None
    auto_retries: int = 0
    retry_count: int = 0
    last_retry: int | None = None
    dead_until: int | None = None
    next_retry: int | None = None
    armed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options = self.options
        self.priority = options.get("priority", 0)
        self.lifo = options.get("lifo", False)
        self.attempts: int = options.get("attempts", 3)
        backoff = options.get("backoff", DEFAULT_BACKOFF)
        self.backoff = backoff if isinstance(backoff, Backoff) else Backoff.exponential(backoff)
        self.timeout = _ms(options.get("timeout"))
        self.ttl = _ms(options.get("ttl"))
        self.stall_timeout = _ms(options.get("stall_timeout"))
        self.group: str | None = options.get("group")
        self.custom_id: str | None = options.get("custom_id")
        self.durable: bool = options.get("durable", False)
        key: Deduplication | None = options.get("deduplication")
        self.key = None if key is None else key.key
        self.key_ttl = None if key is None else _ms(key.ttl)
        self.key_mode = "skip" if key is None else key.mode
        self.key_held = key is not None and key.hold == "ttl"

    # -- deadlines ---------------------------------------------------------------------------

    def moments(self) -> list[tuple[int, int, str]]:
        """(when, in which order, what) of all that time alone will do to it."""
        due: dict[str, int | None] = {}
        if self.state == ACTIVE:
            due = {"lease": self.expires, "stall": self.stall_due(), "timeout": self.times_out}
        elif self.state == PENDING and self.ttl is not None and self.started is None:
            due = {"ttl": self.ttl_due()}
        elif self.state in (COMPLETED, FAILED):
            keep = self.keep()
            age = keep.age if isinstance(keep, KeepJobs) else None
            due = {"retention": None if age is None else self.entered + to_ms(age, "age")}
            if self.state == FAILED:
                due |= {"dead": self.dead_until, "again": self.next_retry}
        return [(at, self.armed.get(what, 0), what) for what, at in due.items() if at is not None]

    def stall_due(self) -> int | None:
        """When the stall check has something to say of it; it watches what has no lock."""
        settings = self.queue.stalls
        if self.lease is not None or not settings.enabled or self.started is None:
            return None
        if self.suspected is not None:
            return self.suspected + CONFIRM_MS
        silence = settings.interval if self.stall_timeout is None else self.stall_timeout
        return max(self.beat + silence, self.started + settings.grace)

    def ttl_due(self) -> int:
        """When it must have started: from its admission, or its last retry."""
        assert self.ttl is not None
        return (self.created if self.last_retry is None else self.last_retry) + self.ttl

    def is_expired(self, now: int) -> bool:
        """Whether its time to start has passed, and it never has."""
        if self.state != PENDING or self.ttl is None or self.started is not None:
            return False
        return now >= self.ttl_due()

    def keep(self) -> bool | KeepJobs:
        """Its retention in the state that it has."""
        which = "remove_on_complete" if self.state == COMPLETED else "remove_on_fail"
        kept: bool | KeepJobs = self.options.get(which, False)
        return kept

    # -- where it stands ---------------------------------------------------------------------

    def due_ms(self, now: int, wall: int) -> int:
        """When it may run, by the timeline."""
        return now + self.run_at - wall if self.anchored else self.run_at

    def is_ready(self, now: int, wall: int) -> bool:
        """Whether it is pending and its moment has come."""
        return self.state == PENDING and self.run_at <= (wall if self.anchored else now)

    def shown(self, now: int, wall: int) -> str:
        """Its state as users see it."""
        if self.state != PENDING:
            return self.state
        if not self.is_ready(now, wall):
            return "delayed"
        return "prioritized" if self.priority > 0 else "waiting"

    def since(self, now: int, wall: int) -> int:
        """When it entered that state."""
        if not self.is_ready(now, wall):
            return self.entered
        due = self.due_ms(now, wall)
        return due if self.anchored else max(self.entered, due)

    def place(self) -> tuple[int, ...]:
        """Its place among the ready: smaller runs first (SPEC 4)."""
        if self.lifo:
            return (-self.priority, 0, -self.number)
        return (-self.priority, 1, self.run_at, self.number)

    def has_key(self, now: int) -> bool:
        """Whether its claim to its key stands."""
        return self.key_until is None or self.key_until > now

    # -- tokens ------------------------------------------------------------------------------

    def knows(self, token: str | None) -> bool:
        """Whether the token was issued for it, as far as it remembers."""
        known = [issued for issued, _ in self.retired[-KNOWN_TOKENS:]]
        return token is not None and (token in known or token == self.last_token)

    def lost_by_sweep(self, token: str | None) -> bool:
        """Whether the token is one that a sweep retired."""
        return (token, True) in self.retired[-KNOWN_TOKENS:]

    def retire(self, by_sweep: bool) -> None:
        """Its delivery has ended, and its token is a former one."""
        if self.token is not None:
            self.retired.append((self.token, by_sweep))
        self.token = self.owner = self.lease = self.expires = self.times_out = None
        self.suspected = None


def _ms(duration: Any) -> int | None:
    return None if duration is None else to_ms(duration, "duration")
