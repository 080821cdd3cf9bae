"""The checks that watch a manager and tell whoever listens, once when something changes."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..ops.recover import enter
from ..state import State
from ..stores.duty import Duty
from .health import overdue

Alarm = tuple[str, str]
"""The reason of a `health` event and its subject."""

ENDS = {
    "queue_idle": "queue_active",
    "queue_large": "queue_normal",
    "worker_saturated": "worker_relieved",
    "listener_behind": "listener_caught_up",
    "handler_overdue": "handler_returned",
    "scheduler_late": "scheduler_on_time",
    "task_failing": "task_recovered",
}
"""The reason that says something is wrong, and the one that says it no longer is."""

QUIET_SHARE = 0.8
"""What went beyond a bound is normal again below this part of it, or it would flicker."""


class _Look(NamedTuple):
    pending: int
    ready: int
    active: int
    may_start: bool
    next_ms: int | None
    started_ms: int


class Checks:
    """What is wrong now, and since when it may be. Looks only where somebody listens for `health`
    events, and only at queues in which something happens or is to happen.

    `touch` may be called under a shard's lock; the rest is the scheduler thread's.
    """

    def __init__(self, state: State, duty: Duty) -> None:
        self._state = state
        self.duty = duty
        state.events.watcher = self
        #: which of their listeners' turns it is
        self._turn = state.events.turns
        #: what has been told as wrong, and the sentence that says it
        self.standing: dict[Alarm, str] = {}
        #: the number of the last event of each queue at the last round
        self._seen: dict[str, int] = {}
        #: what is to be looked at again though nothing happens there
        self._again: dict[str, None] = {}
        self._since: dict[Alarm, int] = {}

    # -- who listens -------------------------------------------------------------------------

    def begin(self) -> None:
        """Somebody listens for `health` events from now on."""
        self.duty.arm(self._state.now() + self._state.periods.check_interval)
        if not self._state.alarm.served:
            self._state.alarm.start()

    def touch(self, at_ms: int) -> None:
        """Something has happened, the first thing since the last round."""
        self.duty.arm(at_ms + self._state.periods.check_interval)

    def problems(self) -> list[str]:
        """What stands as wrong, in sentences; nothing while nobody listens."""
        events = self._state.events
        current = events.watched and self._turn == events.turns
        return list(self.standing.values()) if current else []

    def _attend(self) -> bool:
        """Whether somebody listens; what was noted for those before them is forgotten."""
        events = self._state.events
        if self._turn != events.turns:
            self._turn = events.turns
            for kept in (self.standing, self._seen, self._again, self._since):
                kept.clear()
        return events.watched

    # -- told from outside -------------------------------------------------------------------

    def pass_began(self, late_ms: int) -> None:
        """The scheduler's pass begins so late."""
        periods = self._state.periods
        if not self._attend():
            return
        if late_ms >= periods.scheduler_late_after:
            self._begin(
                "scheduler_late", "", f"the background thread was {late_ms / 1000:g} s late"
            )
        elif self.standing:
            self._end("scheduler_late", "")

    def task_changed(self, name: str, error: str | None) -> None:
        """The circuit of that task has opened, with what it raised last, or closed."""
        if not self._attend():
            return
        if error is None:
            self._end("task_failing", name)
        else:
            self._begin(
                "task_failing", name, f"background task {name!r} fails: {error}", error=error
            )

    # -- looking -----------------------------------------------------------------------------

    def tick(self) -> tuple[int, int | None]:
        """One round of all checks; returns how many things were looked at, and when the next is
        due (`None`: not until something happens)."""
        if not self._attend():
            return 0, None
        state, now = self._state, self._state.now()
        soon = now + state.periods.check_interval
        # in this order: what happens meanwhile is looked at now, or has the next round armed
        state.events.hush()
        for shard in state.shards.shards:
            with shard.lock:
                pass  # who began to tell of something before that is through with it
        again_here, self._again = self._again, {}
        seen, self._seen = self._seen, {}
        for name, queue in list(state.queues.items()):
            self._seen[name] = number = queue.event_seq
            if seen.pop(name, None) != number:
                again_here[name] = None
        names = list(again_here | dict.fromkeys(seen))
        moments: list[int | None] = []
        looks: dict[str, _Look] = {}
        for name in names:
            look = self._look(name)
            if look is None:
                self._forget(name)
                continue
            looks[name] = look
            self._check_size(name, look)
            again = [self._check_idle(name, look, now)]
            if look.next_ms is not None and not look.ready:
                # what becomes ready by time alone touches nothing
                again.append(max(look.next_ms, soon))
            if any(moment is not None for moment in again):
                self._again[name] = None
                moments += again
        moments.append(self._check_workers(looks, now, soon))
        moments.append(self._check_listeners(soon))
        moments.append(self._check_handlers(now, soon))
        return len(names), min((m for m in moments if m is not None), default=None)

    def _look(self, name: str) -> _Look | None:
        state = self._state
        queue = state.queues.get(name)
        if queue is None:
            return None
        with queue.lock:
            if queue.shard.gate:
                enter(state, queue.shard)
            now, wall = state.now(), state.wall()
            counts = queue.counts(now, wall)
            return _Look(
                pending=queue.pending,
                ready=counts.waiting + counts.prioritized,
                active=len(queue.active),
                may_start=queue.room(now) > 0,
                next_ms=queue.next_due(now, wall),
                started_ms=queue.started_ms,
            )

    def _forget(self, name: str) -> None:
        for reason in ("queue_idle", "queue_large"):
            self._since.pop((reason, name), None)
            self._end(reason, name)

    def _check_size(self, name: str, look: _Look) -> None:
        """More are pending than there should be; whatever comes or goes touches the queue."""
        bound = self._state.config.queue_size_alarm
        if look.pending > bound:
            text = f"queue {name!r} has {look.pending:,} pending jobs"
            self._begin("queue_large", name, text, count=look.pending)
        elif look.pending <= bound * QUIET_SHARE:
            self._end("queue_large", name, count=look.pending)

    def _check_idle(self, name: str, look: _Look, now: int) -> int | None:
        """Jobs are ready and may start, nothing is active, and nothing has started for long."""
        alarm = ("queue_idle", name)
        if not look.ready or look.active or not look.may_start:
            self._since.pop(alarm, None)
            self._end(*alarm)
            return None
        since = max(self._since.setdefault(alarm, now), look.started_ms)
        left = since + self._state.periods.queue_idle_after - now
        if left > 0:
            return now + left
        text = f"queue {name!r} has {look.ready:,} ready jobs, and none has started since"
        self._begin(*alarm, text, count=look.ready)
        # whatever starts or goes touches the queue
        return None

    def _check_workers(self, looks: dict[str, _Look], now: int, soon: int) -> int | None:
        due: int | None = None
        here = set()
        for entry in self._state.workers.entries():
            alarm = ("worker_saturated", entry.id)
            here.add(alarm)
            look = looks.get(entry.queue)
            if look is None:
                if alarm in self._since or alarm in self.standing:
                    look = self._look(entry.queue)
                if look is None:
                    continue
            if not look.ready or entry.card.busy < entry.card.concurrency:
                self._since.pop(alarm, None)
                self._end(*alarm)
                continue
            since = self._since.setdefault(alarm, now)
            due = soon
            if now - since >= self._state.periods.worker_saturated_after:
                name = entry.card.name
                text = f"worker {name!r} has all hands full, and {look.ready:,} jobs wait"
                self._begin(*alarm, text, count=look.ready)
        known = self.standing.keys() | self._since.keys()
        for alarm in [a for a in known if a[0] == "worker_saturated" and a not in here]:
            self._since.pop(alarm, None)
            self._end(*alarm)
        return due

    def _check_listeners(self, soon: int) -> int | None:
        bound = self._state.config.listener_backlog_alarm
        behind = {mailbox.name: mailbox.backlog for mailbox in self._state.events.buffers()}
        for name, backlog in behind.items():
            if backlog > bound:
                text = f"listener {name!r} is {backlog:,} events behind"
                self._begin("listener_behind", name, text, count=backlog)
        standing = [a for a in self.standing if a[0] == "listener_behind"]
        for alarm in standing:
            if behind.get(alarm[1], 0) <= bound * QUIET_SHARE:
                self._end(*alarm)
        return soon if standing else None

    def _check_handlers(self, now: int, soon: int) -> int | None:
        found = {one.job_id: one for one in overdue(self._state, now)}
        after = self._state.periods.handler_overdue_after
        for job_id, one in found.items():
            since = self._since.setdefault(("handler_overdue", job_id), now)
            if now - since >= after:
                text = (
                    f"the handler of job {job_id} still runs in worker {one.entry.card.name!r} "
                    "although its run has ended"
                )
                self._begin("handler_overdue", job_id, text)
        for alarm in [a for a in self._since if a[0] == "handler_overdue" and a[1] not in found]:
            del self._since[alarm]
            self._end(*alarm)
        return soon if found else None

    # -- telling -----------------------------------------------------------------------------

    def _begin(self, reason: str, subject: str, text: str, **carried: Any) -> None:
        alarm = (reason, subject)
        if alarm in self.standing:
            return
        self.standing[alarm] = text
        self._tell(reason, subject, message=text, **carried)

    def _end(self, reason: str, subject: str, **carried: Any) -> None:
        if self.standing.pop((reason, subject), None) is not None:
            self._tell(ENDS[reason], subject, **carried)

    def _tell(self, reason: str, subject: str, **carried: Any) -> None:
        state = self._state
        carried.update(reason=reason, subject=subject or None)
        state.events.tell_health(state.now(), carried)
