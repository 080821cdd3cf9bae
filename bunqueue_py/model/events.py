"""Events, as the engine notes them and as listeners see them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from ..durations import ms_to_moment, optional_moment

EVENT_TYPES = frozenset(
    (
        "pushed",
        "active",
        "progress",
        "completed",
        "failed",
        "retried",
        "stalled",
        "released",
        "removed",
        "duplicated",
        "promoted",
        "unblocked",
        "cancelled",
        "paused",
        "resumed",
        "drained",
        "cleaned",
        "obliterated",
        "empty",
        "dlq_added",
        "dlq_retried",
        "dlq_skipped",
        "cron_fired",
        "cron_skipped",
        "cron_missed",
        "queue_created",
        "worker_joined",
        "worker_left",
        "health",
    )
)

STORAGE_FAILING = "storage_failing"
STORAGE_RECOVERED = "storage_recovered"
WEBHOOK_DISABLED = "webhook_disabled"
"""The reasons of `health` events that storage and webhooks give; the others are in
`observe.checks`."""


RawEvent = tuple[str, str, "str | None", int, int, "dict[str, Any] | None"]
"""type, queue, job id, timeline ms, sequence, and what the type carries (result encoded)."""


def _carried(name: str) -> Any:
    def read(self: JobEvent) -> Any:
        carried = self._raw[5]
        return None if carried is None else carried.get(name)

    return property(read)


class JobEvent:
    """Something that happened in a queue. Made by the library, and read-only.

    `type`; `queue`; `job_id`; `timestamp`; `sequence`, which counts the events of one queue without
    gaps, so a listener of all types can see that it lost some (what nobody listens to is not
    counted); it begins at 1 with each `queue_created`. The rest is `None` but for what the
    type carries: `state` (pushed, unblocked), `result` (completed), `error`, `attempt`, `terminal`
    and `reason` or `retry_at` (failed),
    `error` (stalled, cancelled), `reason` (dlq_added, dlq_skipped), `percent`, `message`
    (progress), `count` (drained, cleaned, obliterated), `subject`, the worker's id, and `reason`
    (worker_joined, worker_left). `cron_fired`, `cron_skipped` (`reason`: overlap, no_worker,
    duplicate, group_full, storage) and `cron_missed` (`count`) carry the id of the `scheduler` and
    `planned_at`, the planned time, the first of those that were missed.

    `health` is of the whole manager: its `queue` is empty, and its `sequence` counts these events
    alone. `reason` says what has changed, such as `storage_failing` (with the `error`),
    `storage_recovered`, or `webhook_disabled` (the `error` says which and why); `subject` whom or
    what it is about; docs/reliability.md lists them.
    """

    # A busy program makes thousands a second, of which a listener reads a part or two: one keeps
    # what happened as the engine noted it, and says what it means when asked.
    __slots__ = ("_loads", "_raw", "_result")

    # set by `event_of`: an `__init__` would cost as much again as all the rest of it
    _raw: RawEvent
    _loads: Callable[[bytes], Any]

    @property
    def type(self) -> str:
        """What happened: one of SPEC's types, such as `completed`."""
        return self._raw[0]

    @property
    def queue(self) -> str:
        """The name of the queue; empty for `health`."""
        return self._raw[1]

    @property
    def job_id(self) -> str | None:
        """The id of the job, where it is about one."""
        return self._raw[2]

    @property
    def timestamp(self) -> datetime:
        """When it happened."""
        return ms_to_moment(self._raw[3])

    @property
    def sequence(self) -> int:
        """The number among the events of its queue."""
        return self._raw[4]

    @property
    def result(self) -> Any:
        """What a completed job returned; each listener has its own."""
        carried = self._raw[5]
        data = None if carried is None else carried.get("result")
        if data is None:
            return None
        try:
            return self._result
        except AttributeError:
            self._result: Any = self._loads(data)
            return self._result

    state: str | None = _carried("state")
    error: str | None = _carried("error")
    reason: str | None = _carried("reason")
    attempt: int | None = _carried("attempt")
    terminal: bool | None = _carried("terminal")
    percent: float | None = _carried("percent")
    message: str | None = _carried("message")
    count: int | None = _carried("count")
    subject: str | None = _carried("subject")
    scheduler: str | None = _carried("scheduler")

    @property
    def retry_at(self) -> datetime | None:
        """When a failed job runs again."""
        carried = self._raw[5]
        return None if carried is None else optional_moment(carried.get("retry_at_ms"))

    @property
    def planned_at(self) -> datetime | None:
        """The planned time of a scheduler's run."""
        carried = self._raw[5]
        return None if carried is None else optional_moment(carried.get("planned_at_ms"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobEvent) and self._raw == other._raw

    def __hash__(self) -> int:
        return hash(self._raw[:5])

    def __repr__(self) -> str:
        told = ((name, getattr(self, name)) for name in FIELDS)
        return f"JobEvent({', '.join(f'{k}={v!r}' for k, v in told if v is not None)})"

    def __reduce__(self) -> tuple[Any, ...]:
        # the serializer stays here
        return _copied, (self._raw, self.result)


FIELDS = tuple(name for name, part in vars(JobEvent).items() if isinstance(part, property))
"""The names of what an event may say."""


def event_of(raw: RawEvent, loads: Callable[[bytes], Any]) -> JobEvent:
    """The event as listeners see it; `loads` decodes a result."""
    event = JobEvent()
    event._raw, event._loads = raw, loads
    return event


def _copied(raw: RawEvent, result: Any) -> JobEvent:
    event = event_of(raw, _gone)
    event._result = result
    return event


def _gone(data: bytes) -> Any:
    raise AssertionError("a copied event has its result")
