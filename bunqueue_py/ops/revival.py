"""A finished job runs again: whether it may, and how."""

from __future__ import annotations

from ..errors import JobStateError
from ..model.job import ACTIVE, FAILED, JobRecord
from ..shard.deadlines import TTL
from ..shard.queue_state import QueueState
from ..shard.unique_keys import begin, key_conflict
from ..state import State
from ..stores.dependencies import RETRIED, Effect
from .deduplicate import refuse_conflict, take_key
from .fail import announce
from .finish import emit, goes_by_age
from .flow import failed_dependency, gated_anew
from .mark import mark_revived
from .outcomes import links_of, note
from .recover import ttl_due


def refusal_of_retry(state: State, queue: QueueState, record: JobRecord, now: int) -> str | None:
    """Why a finished job cannot be retried now, in words that follow "because"; `None` if it can.

    Its shard is held. Whatever a live job may have taken from a finished one is asked for here.
    """
    if record.custom_id is not None:
        holder = queue.custom_ids.get(record.custom_id)
        if holder is not None and holder is not record and holder.state <= ACTIVE:
            return (
                f"its custom id {record.custom_id!r} now belongs to live job {holder.id}; wait "
                "until that has finished, or remove it"
            )
    other = key_conflict(queue, record, now)
    if other is not None:
        return f"its deduplication key {record.unique_key!r} now belongs to live job {other}"
    links = links_of(record)
    return None if links is None else failed_dependency(state, links)


def refuse_retry(state: State, queue: QueueState, record: JobRecord, now: int) -> None:
    """Raises what `refusal_of_retry` says: `DuplicateJobError` for the key, `JobStateError` for
    anything else."""
    refuse_conflict(queue, record, now)
    why = refusal_of_retry(state, queue, record, now)
    if why is not None:
        raise JobStateError(
            f"job {record.id} cannot be retried, because {why}",
            job_id=record.id,
        )


def revive(
    state: State, queue: QueueState, record: JobRecord, now: int, *, automatic: bool = False
) -> None:
    """Puts a finished job back among the pending; its shard is held, and `refusal_of_retry` has
    found nothing in its way. `automatic`: the dead letters do it by themselves, and go on
    counting. The caller calls `shard.call_after` in the end."""
    failed, result_size = record.state == FAILED, record.result_size
    aged = goes_by_age(record)
    if failed:
        queue.dead.disarm(record, queue.shard.deadlines)
        queue.dead.remove(record)
    else:
        if queue.completed.discard(record):
            queue.shard.finished -= 1
            queue.shard.finished_bytes -= len(record.data) + max(0, record.result_size)
        if record.result_size >= 0:
            state.results.drop(record.id)
    queue.counted.pop(record.id, None)
    # before it lives: a rebuild must find its claim standing
    begin(record, now)
    record.revive(now, automatic=automatic)
    if aged:
        # only now, as `drop_ttl` says
        queue.shard.deadlines.drop()
    if record.unique_key is not None:
        take_key(state, queue, record, now)
    ready = False
    if links_of(record) is None or not gated_anew(state, queue, record, now):
        ready = queue.place(record, now)
    mark_revived(queue, record, result_size)
    if record.id in state.dependencies.dependents:
        note(state, queue.shard, Effect(RETRIED, record.id, queue.name))
    if record.options.ttl_ms is not None:
        due = ttl_due(record)
        queue.shard.deadlines.push(due, TTL, record)
        if due < state.alarm.due_ms:
            state.alarm.set(due)
    if state.events.any:
        emit(state, queue, "dlq_retried" if failed else "retried", record.id, now)
    announce(state, queue, record, now, ready=ready)
