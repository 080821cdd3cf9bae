"""Push of a batch: many jobs come in, in order, as one unit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import BunqueueError, StorageError
from ..model.checks import checked_queue_name
from ..model.job import JobRecord
from ..model.options import JobSpec
from ..model.own import NAMED, Own
from ..model.snapshot import JobSnapshot, new_fields
from ..shard.shard import BROKEN, OPEN
from ..state import State
from .admit import PUSHED, admitted, refusal
from .commit import cut_short, first_durable, refuse, settle
from .draft import draft_batch
from .finish import emit
from .mark import mark_new
from .push import find_queue
from .recover import enter
from .tie import Batch


def push_batch(
    state: State, queue_name: str, specs: Iterable[JobSpec | tuple[str, Any]]
) -> list[JobSnapshot]:
    """Admits all, in order, in one hold of the lock; what is invalid refuses the batch whole,
    naming `jobs[i]`."""
    checked_queue_name(queue_name)
    timings = state.timings
    began_ns = 0 if timings is None else timings.now_ns()
    drafts, batch = draft_batch(state, state.queues.get(queue_name), specs)
    if batch is not None:
        return _push_tied(state, queue_name, drafts, batch)
    storage = state.storage
    durable = False
    if storage is not None:
        durable = any(record.options.durable for record, _ in drafts)
        if durable or storage.troubled:
            refuse(state, durable=durable)
    queue = find_queue(state, queue_name)
    for record, _ in drafts:
        record.queue = queue
    shard = queue.shard
    jobs: list[JobSnapshot] = []
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        shard.gate = BROKEN
        index, view = state.index, state.view
        owners, custom_ids = queue.unique_keys.owners, queue.custom_ids
        # with nobody to wake, the plain job of a batch takes the short way of _admit, in line
        quiet, heard = not queue.waiters.line, state.events.pushed is not None
        full: BunqueueError | None = None
        dirty = shard.dirty
        plain: list[JobRecord] = []
        for record, own in drafts:
            if (
                quiet
                and (
                    own is None
                    or (
                        own is NAMED
                        and (record.custom_id is None or record.custom_id not in custom_ids)
                        and (record.unique_key is None or record.unique_key not in owners)
                    )
                )
                and record.options.is_plain
            ):
                record.created_ms = record.run_at_ms = record.entered_ms = now
                queue.admitted += 1
                queue.seq += 1
                index[record.id] = record
                if own is not None:
                    if record.custom_id is not None:
                        custom_ids[record.custom_id] = record
                    if record.unique_key is not None:
                        if record.claim is None or record.claim.__class__ is int:
                            owners[record.unique_key] = record
                        else:
                            queue.unique_keys.take_new(record, now)
                priority = record.priority
                if priority == 0:
                    queue.ready.append(record, queue.seq)
                else:
                    queue.ready.admit(record, queue.seq)
                jobs.append(view(record.id, None, new_fields(record, queue.name, now)))
                if dirty is not None:
                    if own is None and priority == 0:
                        plain.append(record)
                    elif own is None:
                        dirty.add_new(record, queue.name, queue.seq, now)
                    else:
                        mark_new(queue, record)
                if heard:
                    emit(state, queue, "pushed", record.id, now, PUSHED[priority > 0])
            else:
                if own is not None and (
                    own.group_limit is not None or state.dependencies.dependents
                ):
                    full = refusal(state, queue, record, own, now)
                    if full is not None:
                        break
                if plain and dirty is not None:
                    # whatever this one changes of them goes over their marks
                    dirty.add_lane(plain, queue.name, now)
                    plain.clear()
                jobs.append(admitted(state, queue, record, own, now))
        if plain and dirty is not None:
            dirty.add_lane(plain, queue.name, now)
        shard.gate = OPEN
        first = first_durable(jobs, drafts) if durable else None
        cut = storage.cut if first is not None and storage is not None else 0
    shard.call_after()
    if not state.alarm.served:
        state.alarm.start()
    _settle_batch(state, cut, first, jobs, full, len(jobs))
    if began_ns and timings is not None:
        timings.push.end(began_ns)
    return jobs


def _push_tied(
    state: State, queue_name: str, drafts: list[tuple[JobRecord, Own | None]], batch: Batch
) -> list[JobSnapshot]:
    """A batch whose jobs depend on others: each comes in after those of the batch that it depends
    on, and is returned in its place. Of one that is cut short, what came in stands."""
    storage = state.storage
    durable = any(record.options.durable for record, _ in drafts)
    if storage is not None and (durable or storage.troubled):
        refuse(state, durable=durable)
    queue = find_queue(state, queue_name)
    for record, _ in drafts:
        record.queue = queue
    shard = queue.shard
    found: dict[int, JobSnapshot] = {}
    refused: BunqueueError | None = None
    cut, at = 0, 0
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        shard.gate = BROKEN
        for i in batch.order:
            record, own = drafts[i]
            own = own or NAMED
            batch.rename(record)
            refused = refusal(state, queue, record, own, now, batch.known_done)
            if refused is not None:
                at = i
                break
            job = found[i] = admitted(state, queue, record, own, now, batch.known_done)
            if job._id != record.id:
                batch.alias[record.id] = job._id
        shard.gate = OPEN
        first = next((j._id for i, j in found.items() if drafts[i][0].options.durable), None)
        if first is not None and storage is not None:
            cut = storage.cut
    shard.call_after()
    if not state.alarm.served:
        state.alarm.start()
    jobs = [found[i] for i in sorted(found)]
    _settle_batch(state, cut, first, jobs, refused, at)
    return jobs


def _settle_batch(
    state: State,
    cut: int,
    durable: str | None,
    jobs: list[JobSnapshot],
    refused: BunqueueError | None,
    at: int,
) -> None:
    """Waits for what the batch asks for on disk, of which `durable` is the first; then raises what
    cut the batch short at `jobs[at]`, if anything did."""
    problem = None
    try:
        settle(state, cut, durable)
    except StorageError as error:
        if refused is None:
            raise
        problem = error
    if refused is not None:
        raise cut_short(refused, jobs, problem, at) from refused
