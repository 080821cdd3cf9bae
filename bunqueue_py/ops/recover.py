"""What is done when an exception landed inside a critical section."""

from __future__ import annotations

import logging
from collections import deque
from operator import attrgetter

from ..model.job import ACTIVE, COMPLETED, FAILED, GATED, PENDING, JobRecord
from ..model.links import Links
from ..model.options import Keep
from ..shard.deadlines import LEASE, RETENTION, TIMEOUT, TTL, Deadlines
from ..shard.keys import LIMIT, departed_key, seq_of
from ..shard.queue_state import QueueState, finished_size
from ..shard.shard import BROKEN, OPEN, FinishedHeads, Shard
from ..shard.stalls import watch
from ..state import State
from ..stores.dependencies import AGAIN, Effect
from .finish import forget, resolve
from .log_rows import mark_logs
from .mark import mark, mark_all, mark_gone, mark_group, mark_held, mark_queue
from .outcomes import links_of, mark_edges, note
from .schedule_marks import set_anew

_log = logging.getLogger("bunqueue_py.recover")
_REBUILT = "an exception broke off a critical section; shard %d was rebuilt from its records"


def enter(state: State, shard: Shard) -> None:
    """Called with the shard's lock held when its gate is not open: refuses if it is closed, and
    rebuilds it if an exception had broken a section off."""
    shard.refuse()
    rebuild(state, shard)


def check_open(state: State) -> None:
    """Raises what a closed or forked manager answers; for verbs that find no shard to enter."""
    shard = state.shards.shards[0]
    if shard.gate:
        shard.refuse()


def rebuild(state: State, shard: Shard) -> None:
    """Makes every structure and counter of the shard anew from its records, whose state is the
    only truth, and wakes everybody who waits so that no wake is lost. What is on disk is written
    anew too, whatever had been marked of the section that broke off."""
    shard.gate = BROKEN
    # after release: a logging handler is foreign code
    shard.after.append(lambda: _log.warning(_REBUILT, shard.index))
    make_anew(state, shard)
    for queue in shard.queues.values():
        set_anew(state, queue)
    if state.dependencies.dependents:
        note(state, shard, Effect(AGAIN, "", ""))
    if shard.dirty is not None:
        mark_logs(state, shard)
        for queue in shard.queues.values():
            mark_queue(queue)
            for group in () if queue.groups is None else queue.groups.by_name.values():
                group.stored = True  # perhaps: the section may have broken off before its mark
                mark_group(queue, group)
            for record in queue.records():
                mark_all(state, queue, record)
                links = links_of(record)
                if links is not None:
                    mark_edges(queue, record, links)
            for record in queue.unique_keys.gone():
                mark_held(queue, record)
    shard.gate = OPEN


STRAY_SHARE = 8
"""A line with more than one stray in so many is none: the heap, where strays go, costs more."""


class Found:
    """The records of one queue as a storage has told them.

    `line` are ready ones for its lane, one behind the other as they stand here, their `key` the
    number already; `run_at_ms` and `entered_ms` are those of the last. `others` are, in the order
    of the storage, those of which more is to be known: all that do not stand in the line, and some
    that do. `seq` is the greatest number of a pending one, `mixed` says that such numbers did not
    always grow, and `strays` counts those not in the line that might have stood there.
    """

    __slots__ = ("entered_ms", "line", "mixed", "others", "queue", "run_at_ms", "seq", "strays")

    def __init__(self, queue: QueueState) -> None:
        self.queue = queue
        self.line: deque[JobRecord] = deque()
        self.others: list[JobRecord] = []
        self.seq = self.run_at_ms = self.entered_ms = self.strays = 0
        self.mixed = False

    def dissolve(self) -> None:
        """Ends the line: the place of each record is to be found out."""
        self.others = [record for record in self.others if record.key >= LIMIT]
        for record in self.line:
            record.key = departed_key(record.key)
        self.others += self.line
        self.others.sort(key=_key)
        self.line = deque()


def make_anew(state: State, shard: Shard, found: dict[str, Found] | None = None) -> None:
    """The structures and counters of the shard, from its records; the gate is the caller's.
    `found` has them, by queue, where they come from a storage: pending ones then keep their
    admission numbers, which are on disk."""
    records: dict[str, list[JobRecord]] = {name: [] for name in shard.queues}
    if found is None:
        for record in list(state.index.values()):
            if record.queue.shard is shard:
                records[record.queue.name].append(record)
    shard.deadlines = Deadlines()
    shard.finished = shard.finished_bytes = 0
    now = state.now()
    for name, queue in shard.queues.items():
        part = None if found is None else found.get(name) or Found(queue)
        added = queue.admitted + queue.admitted_shift
        _rebuild_queue(state, queue, records[name] if part is None else part.others, now, part)
        queue.admitted_shift = added - queue.admitted
    shard.heads = FinishedHeads()
    for queue in shard.queues.values():
        shard.heads.push(queue)
    due = shard.deadlines.next_ms()
    if due is not None:
        state.alarm.set(max(due, now))
    # what broke off may have been about to do so
    state.alarm.ring()
    _resolve_watchers(state, shard)


def _rebuild_queue(
    state: State,
    queue: QueueState,
    records: list[JobRecord],
    now: int,
    found: Found | None = None,
) -> None:
    queue.clear()
    # a record whose remove() was reached, but not its leaving the index
    for record in [r for r in records if r.state > FAILED]:
        mark_gone(queue, record, whole=True)
        state.index.pop(record.id, None)
    records = [r for r in records if r.state <= FAILED]
    pending: list[JobRecord] = []
    others: list[JobRecord] = []
    for record in records:
        (pending if record.state == PENDING else others).append(record)
        if record.state != ACTIVE:
            record.delivery = None
    deadlines = queue.shard.deadlines
    queue.departed = 0
    if found is not None and found.line:
        queue.ready.lane.records = found.line
        strays = [record for record in pending if record.key >= LIMIT]
        queue.admitted = len(found.line) + len(strays) + len(others)
        _place_pending(queue, strays, now, numbered=True, lane=False)
    else:
        queue.admitted = len(records)
        _place_pending(queue, pending, now, numbered=found is not None)
    for record in pending:
        if record.options.ttl_ms is not None and record.started_ms is None:
            deadlines.push(ttl_due(record), TTL, record)
        if record.custom_id is not None:
            _rebuild_custom_id(queue, record)
    for record in sorted(others, key=_entered):
        if record.state == GATED:
            _rebuild_gated(state, queue, record)
        elif record.state == ACTIVE:
            queue.active[record.id] = record
            if record.side is not None and record.side.group is not None:
                queue.need_groups().of(record).active += 1
            delivery = record.delivery
            assert delivery is not None
            if delivery.expires_ms is not None:
                delivery.armed_ms = delivery.expires_ms
                deadlines.push(delivery.expires_ms, LEASE, delivery)
            else:
                delivery.armed_ms = None
                watch(deadlines, delivery, queue.stalls)
            if delivery.timeout_ms is not None:
                deadlines.push(delivery.timeout_ms, TIMEOUT, delivery)
        elif record.state == COMPLETED:
            queue.completed.add(record)
            queue.shard.finished += 1
            queue.shard.finished_bytes += finished_size(record)
        elif record.state == FAILED:
            queue.dead.add(record, deadlines)
        if record.custom_id is not None:
            _rebuild_custom_id(queue, record)
    for record in [r for r in others if r.state in (COMPLETED, FAILED)]:
        options = record.options
        keep = options.remove_on_complete if record.state == COMPLETED else options.remove_on_fail
        if keep is True:
            forget(state, queue, record, remember=True)
        elif isinstance(keep, Keep):
            if keep.age_ms is not None:
                queue.shard.deadlines.push(record.entered_ms + keep.age_ms, RETENTION, record)
            if keep.count is not None:
                queue.counted[record.id] = record
    if queue.groups is not None:
        queue.groups.update_all(now)
    for record in queue.dead.excess():
        forget(state, queue, record, remember=True)
    # last, when the replaced ones stand where `forget` looks for them; in order of admission
    for record in queue.unique_keys.rebuild(records, now):
        forget(state, queue, record, remember=False)
        resolve(queue, record.id, "removed", None)
    queue.waiters.wake(len(queue.waiters))
    queue.settle_idle()


def _place_pending(
    queue: QueueState,
    records: list[JobRecord],
    now: int,
    *,
    numbered: bool,
    lane: bool = True,
) -> None:
    """Delayed jobs in the order of admission, ready ones in that of becoming ready, as listings
    show them. What stands in a lane shows by its number, so it must agree in all three. Without
    `lane`, that of priority 0 is taken, and such jobs go to the heap."""
    due_ms, ready_ms, number, anew = 0, 0, -1, False
    apart: list[tuple[int, int, JobRecord]] = []
    # numbered, all have keys that tell nothing but their numbers
    for record in sorted(records, key=_key if numbered else _admission):
        seq = seq_of(record) if numbered else None
        if seq is not None:
            # two of one number: from here on new ones, or their order on disk would be another
            anew = anew or seq <= number
            number = seq
        if seq is None or anew:
            queue.seq += 1
            seq = queue.seq
        side = record.side
        if (side is None or not side.anchored) and record.run_at_ms <= now:
            if record.entered_ms < record.run_at_ms:
                # it was delayed, and has come due since
                record.entered_ms = record.run_at_ms
            if (
                record.run_at_ms < due_ms
                or record.entered_ms < ready_ms
                or record.options.lifo
                or not (lane or record.priority)
                or (side is not None and side.group is not None)
            ):
                apart.append((record.entered_ms, seq, record))
                continue
            due_ms, ready_ms = record.run_at_ms, record.entered_ms
        queue.place(record, now, seq, in_order=True)
        if anew:
            mark(queue, record)
    for _, seq, record in sorted(apart, key=_stamp):
        queue.place(record, now, seq)
        if anew:
            mark(queue, record)


def _rebuild_gated(state: State, queue: QueueState, record: JobRecord) -> None:
    """A record that waits for others, in its old place among such. What it waits for is looked at
    by the drain."""
    seq = seq_of(record)
    if seq is None:
        queue.gate(record)
    else:
        record.key = departed_key(seq)
        queue.gated[record.id] = record
    if record.options.ttl_ms is not None and record.started_ms is None:
        queue.shard.deadlines.push(ttl_due(record), TTL, record)
    links = record.need_side().links
    if links is None:
        # only a file that was changed by hand has such a job: the first look lets it go
        links = record.need_side().links = Links()
    links.recount()
    state.dependencies.register(record.id, links.edges)


_key = attrgetter("key")
_entered = attrgetter("entered_ms")


def _stamp(entry: tuple[int, int, JobRecord]) -> tuple[int, int]:
    return entry[:2]


def _rebuild_custom_id(queue: QueueState, record: JobRecord) -> None:
    assert record.custom_id is not None
    holder = queue.custom_ids.get(record.custom_id)
    if holder is None or holder.state > ACTIVE:
        queue.custom_ids[record.custom_id] = record


def _admission(record: JobRecord) -> int:
    seq = seq_of(record)
    return 0 if seq is None else seq


def ttl_due(record: JobRecord) -> int:
    """When the job's ttl runs out: counted from its admission, or from its last retry."""
    assert record.options.ttl_ms is not None
    since = record.created_ms
    if record.side is not None and record.side.last_retry_ms is not None:
        since = record.side.last_retry_ms
    return since + record.options.ttl_ms


def _resolve_watchers(state: State, shard: Shard) -> None:
    """Whoever waits for a job that has ended in the broken section learns it now."""
    for job_id in list(shard.watched):
        record = state.index.get(job_id)
        if record is not None and record.state <= ACTIVE:
            continue
        for watcher in shard.watched.pop(job_id):
            if record is not None and record.state == FAILED:
                assert record.side is not None
                watcher.resolve(shard, "failed", record.side.failure)
            elif record is not None and record.state == COMPLETED:
                watcher.resolve(shard, "completed", state.results.get(job_id))
            else:
                proof = state.proofs.get(job_id)
                if proof is None:
                    watcher.resolve(shard, "removed", None)
                elif proof.failure is not None:
                    watcher.resolve(shard, "failed", proof.failure)
                else:
                    watcher.resolve(shard, "completed", state.results.get(job_id))
