"""`JobRecord`, the live job: guarded by its shard's lock and never handed out.

Only the transition methods assign `state`. What the old state needs (its delivery, its failure)
goes after that assignment, what the new one needs comes before it, so that a record which an
exception caught half-way is still whole in the state it names.
"""

from __future__ import annotations

from typing import Any

from .cancel import Cancellation
from .claim import AnyClaim
from .failure import Failure
from .options import Options
from .side import AttemptRow, Side

PENDING, GATED, ACTIVE, COMPLETED, FAILED, REMOVED = range(6)
STATE_NAMES = ("pending", "gated", "active", "completed", "failed", "removed")
NOWHERE = -1
"""The `key` of a record that stands in no ready or delayed structure."""

GATED_STEP = "waiting-children"
"""What the timeline calls the state of waiting for other jobs."""

WAITS_YET = -1
"""In the place of a timeline: the job waits for others since it came in."""

MAX_RETIRED = 8
MAX_ATTEMPT_HISTORY = 50


class IllegalTransition(RuntimeError):
    """A state change that the table of SPEC section 2 does not have: a bug of the library."""


class Delivery:
    """One run of a job: who holds it, under which token, until when.

    `lease_ms` and `expires_ms` are `None` when the job was pulled without a lock. `armed_ms` is
    the moment of its one deadline that counts; a renewed lease expires later than that. Only a
    delivery without a lock has `beat_ms`, its last sign of life, and `suspected_ms`, when the
    stall check began to suspect it (`None`: it does not). `begun`: its handler was called, which
    alone may be said without the shard's lock. Only that of a job that had started before has
    `before_ms`, when it had; only one whose lease was spared after a freeze has `spared`: how often
    that was with no heartbeat between, and until when.
    """

    __slots__ = (
        "armed_ms",
        "beat_ms",
        "before_ms",
        "begun",
        "cancellation",
        "expires_ms",
        "lease_ms",
        "owner",
        "record",
        "spared",
        "suspected_ms",
        "timeout_ms",
        "token",
    )

    armed_ms: int | None
    beat_ms: int
    before_ms: int
    cancellation: Cancellation
    spared: tuple[int, int]
    suspected_ms: int | None

    record: JobRecord
    token: str
    owner: str | None
    lease_ms: int | None
    expires_ms: int | None
    begun: bool
    timeout_ms: int | None

    # There is no `__init__`: called by a class, it costs more than all that it would do. Whoever
    # delivers one job alone sets the fields in line.

    @staticmethod
    def of(
        record: JobRecord,
        token: str,
        owner: str | None,
        lease_ms: int | None,
        expires_ms: int | None,
        begun: bool,
    ) -> Delivery:
        """A new one, of which nothing has a timeout yet."""
        delivery = Delivery()
        delivery.record = record
        delivery.token = token
        delivery.owner = owner
        delivery.lease_ms = lease_ms
        delivery.expires_ms = delivery.armed_ms = expires_ms
        delivery.begun = begun
        delivery.timeout_ms = None
        return delivery


class JobRecord:
    """The live job. `queue` is its queue's state (opaque here); times are timeline milliseconds.

    `key` is its place in the ready or delayed structures, and tells its admission number when it
    has left them; `entered_ms` is when it entered its state, so of a finished job the moment it
    finished; `last_token` outlives the delivery so that a late caller can be told from a stranger.
    `unique_key` is its deduplication key, `claim` what it asks beyond owning it while it lives.
    """

    __slots__ = (
        "attempts_made",
        "claim",
        "created_ms",
        "custom_id",
        "data",
        "delivery",
        "entered_ms",
        "id",
        "key",
        "last_token",
        "name",
        "options",
        "priority",
        "queue",
        "result_size",
        "run_at_ms",
        "side",
        "started_ms",
        "state",
        "unique_key",
    )

    id: str
    queue: Any
    name: str
    options: Options
    priority: int
    data: bytes
    created_ms: int
    run_at_ms: int
    entered_ms: int
    attempts_made: int
    key: int
    result_size: int
    started_ms: int | None
    delivery: Delivery | None
    last_token: str | None
    custom_id: str | None
    unique_key: str | None
    claim: AnyClaim
    side: Side | None
    state: int

    def __init__(
        self, job_id: str, queue: Any, name: str, options: Options, priority: int, data: bytes
    ) -> None:
        self.id = job_id
        self.queue = queue
        self.name = name
        self.options = options
        self.priority = priority
        self.data = data
        # created_ms, run_at_ms and entered_ms are set when it is admitted, under the lock
        self.attempts_made = 0
        self.key = self.result_size = NOWHERE
        self.started_ms = self.delivery = self.last_token = None
        self.custom_id = self.unique_key = self.claim = self.side = None
        self.state = PENDING

    # -- transitions -------------------------------------------------------------------------

    def start(self, delivery: Delivery, now: int) -> None:
        """pending -> active, held by `delivery`."""
        if self.state != PENDING:
            raise self._illegal("active")
        self.started_ms = now
        self.last_token = delivery.token
        self.entered_ms = now
        self.delivery = delivery
        side = self.side
        if side is not None and side.timeline.__class__ is tuple:
            # a slice of the whole is no copy
            side.timeline = (*side.timeline, ("active", now))[-self.options.max_timeline :]
        self.state = ACTIVE

    def requeue(
        self,
        run_at_ms: int,
        now: int,
        step: str,
        *,
        charged: AttemptRow | None = None,
        by_sweep: bool = False,
    ) -> None:
        """active -> pending, its token retired; `step` is what the timeline calls it, `charged`
        the row of a run that counts, `by_sweep` a run that was lost."""
        if self.state != ACTIVE:
            raise self._illegal("pending")
        side = self._traced(step, now)
        self._retire(side, by_sweep)
        if charged is not None:
            side.failure = charged.failure
        self.run_at_ms = run_at_ms
        self.entered_ms = now
        self.key = NOWHERE
        self.state = PENDING
        self.delivery = None
        self._charge(side, charged, by_sweep)

    def complete(self, now: int, result_size: int) -> None:
        """active -> completed; or pending -> completed by a late ack after a sweep.
        `result_size` is in bytes, -1 where the result is `None`."""
        if self.state != ACTIVE and self.state != PENDING:
            raise self._illegal("completed")
        self.result_size = result_size
        self.entered_ms = now
        self.state = COMPLETED
        self.delivery = None
        side = self.side
        if side is not None and side.common is None:
            # a success ends what the dead letters knew of it
            side.letter = None
            side.dlq_retries = 0
            if side.timeline.__class__ is tuple:
                side.timeline = (*side.timeline, ("completed", now))[-self.options.max_timeline :]

    def fail(
        self,
        failure: Failure,
        now: int,
        *,
        charged: AttemptRow | None = None,
        by_sweep: bool = False,
    ) -> None:
        """active or pending or gated -> failed, for good; the rest as in `requeue`."""
        if self.state > ACTIVE:
            raise self._illegal("failed")
        side = self._traced("failed", now)
        self._retire(side, by_sweep=False)
        side.failure = failure
        self.entered_ms = now
        self.state = FAILED
        self.delivery = None
        self._charge(side, charged, by_sweep)

    def revive(self, now: int, *, automatic: bool = False) -> None:
        """failed or completed -> pending, with fresh attempts, stalls and progress; the history
        of attempts stays. What the dead letters know of it stays too if they retry it by
        themselves; otherwise its next stay there is a new one."""
        if self.state != FAILED and self.state != COMPLETED:
            raise self._illegal("pending")
        side = self._traced("retried", now)
        if self.last_token is not None and not self.issued(self.last_token, retired_only=True)[0]:
            # that of a completed run: its late callers are still known as such
            side.retired = (*side.retired[-(MAX_RETIRED - 1) :], (self.last_token, False))
        failed = self.state == FAILED
        side.last_retry_ms = now
        side.stall_count = 0
        side.progress, side.progress_message, side.progress_event_ms = 0, None, None
        side.anchored = False
        self.attempts_made = 0
        self.result_size = -1
        self.started_ms = None
        self.run_at_ms = now
        self.entered_ms = now
        self.key = NOWHERE
        self.state = PENDING
        side.failure = None
        side.dlq_retries += failed
        if not automatic:
            side.letter = None
        elif side.letter is not None:
            side.letter.auto_retries += 1

    def reschedule(self, run_at_ms: int, now: int, step: str) -> None:
        """Stays pending, with another moment by the timeline; `step` as in `requeue`."""
        if self.state != PENDING:
            raise self._illegal("pending")
        side = self._traced(step, now)
        self.run_at_ms = run_at_ms
        self.entered_ms = now
        side.anchored = False

    def gate(self, now: int, *, new: bool = False) -> None:
        """pending -> gated: it waits for other jobs, in no place of its queue. `new`: it comes in
        so, and nothing has happened to it before."""
        if self.state != PENDING:
            raise self._illegal("gated")
        if new:
            self.need_side().timeline = WAITS_YET
        else:
            self._traced(GATED_STEP, now)
        self.entered_ms = now
        self.state = GATED

    def park(self, now: int) -> None:
        """active -> gated: its run ends uncharged, its token retired, and it waits for others."""
        if self.state != ACTIVE:
            raise self._illegal("gated")
        side = self._traced(GATED_STEP, now)
        self._retire(side, by_sweep=False)
        self.entered_ms = now
        self.key = NOWHERE
        self.state = GATED
        self.delivery = None

    def unblock(self, now: int) -> None:
        """gated -> pending: nothing holds it back any more."""
        if self.state != GATED:
            raise self._illegal("pending")
        side = self.side
        if side is not None and side.timeline == WAITS_YET:
            side.timeline = now
        else:
            self._traced("unblocked", now)
        self.entered_ms = now
        self.key = NOWHERE
        self.state = PENDING

    def remove(self) -> None:
        """any state -> removed: the job is gone."""
        if self.state == REMOVED:
            raise self._illegal("removed")
        self.key = NOWHERE
        self.state = REMOVED
        self.delivery = None
        # a stale deadline may hold the record for a while; not its payload too
        self.data = b""

    def _illegal(self, to: str) -> IllegalTransition:
        return IllegalTransition(f"job {self.id} cannot go from {STATE_NAMES[self.state]} to {to}")

    # -- what hangs on it --------------------------------------------------------------------

    def need_side(self) -> Side:
        """The side object, this job's own, made on first need."""
        side = self.side
        if side is None:
            side = self.side = Side()
        elif side.common is not None:
            side = self.side = side.twin()
        return side

    def attempt_row(self, failure: Failure, now: int) -> AttemptRow:
        """The row of the history that the run under way would leave; changes nothing."""
        return AttemptRow(self.attempts_made + 1, self.started_ms, now, failure)

    def _charge(self, side: Side, row: AttemptRow | None, by_sweep: bool) -> None:
        if row is not None:
            side.attempts = (*side.attempts[-(MAX_ATTEMPT_HISTORY - 1) :], row)
            side.stall_count += by_sweep
            self.attempts_made = row.attempt

    def issued(self, token: str | None, *, retired_only: bool = False) -> tuple[bool, bool]:
        """Whether `token` was issued for this job, and whether a sweep retired it."""
        if token is None:
            return False, False
        if self.side is not None:
            for known, by_sweep in self.side.retired:
                if known == token:
                    return True, by_sweep
        return token == self.last_token and not retired_only, False

    def _retire(self, side: Side, by_sweep: bool) -> None:
        if self.delivery is not None:
            kept = side.retired[-(MAX_RETIRED - 1) :]
            side.retired = (*kept, (self.delivery.token, by_sweep))

    def _traced(self, step: str, now: int) -> Side:
        """The side object with `step` on its timeline, which begins with the first step that the
        record's own moments do not already tell."""
        side = self.need_side()
        steps = side.timeline
        if not isinstance(steps, tuple):
            steps = plain_timeline(self.created_ms, self.run_at_ms, self.started_ms, steps)
            if self.state == COMPLETED:
                steps = (*steps, ("completed", self.entered_ms))
        side.timeline = (*steps, (step, now))[-self.options.max_timeline :]
        return side


def plain_timeline(
    created_ms: int, run_at_ms: int, started_ms: int | None, let_go_ms: int | None = None
) -> tuple[tuple[str, int], ...]:
    """The timeline that a job's own moments tell, for one that keeps none but the last of them."""
    steps: tuple[tuple[str, int], ...]
    if let_go_ms is None:
        steps = (("delayed" if run_at_ms > created_ms else "waiting", created_ms),)
    elif let_go_ms == WAITS_YET:
        steps = ((GATED_STEP, created_ms),)
    else:
        steps = ((GATED_STEP, created_ms), ("unblocked", let_go_ms))
    return steps if started_ms is None else (*steps, ("active", started_ms))
