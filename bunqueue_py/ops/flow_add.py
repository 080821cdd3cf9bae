"""A whole flow comes in, over several queues, as one unit: all of it or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..errors import (
    BunqueueError,
    FlowError,
    GroupFullError,
    JobStateError,
)
from ..model.flow_node import MAX_LEVELS, FlowPlan
from ..model.job import ACTIVE, GATED, PENDING, REMOVED, JobRecord
from ..model.links import Links
from ..model.own import NAMED, Own
from ..model.snapshot import JobSnapshot, new_fields
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN, Shard
from ..state import State
from .ack import GONE as NO_JOB
from .ack import answer, judge_token
from .admit import admitted, group_full
from .archive import missing, not_found
from .commit import refuse, settle
from .flow_draft import Drafts, drafted, named_by, tie_drafts
from .mark import mark, mark_new
from .outcomes import links_of, mark_edges
from .push import find_queue
from .recover import enter
from .tie import first_unknown, on_file_only


class Parent(NamedTuple):
    """The job that a flow is added to, as its first root's parent: its id, the token of the
    delivery whose handler asks, and whether there is one."""

    job_id: str
    token: str | None
    held: bool


def add_flows(
    state: State, plan: FlowPlan, *, chain: bool = False, parent: Parent | None = None
) -> list[JobSnapshot]:
    """Adds all jobs of the plan in one unit, and returns them in its order. `chain`: each root
    waits for the one before. Raises `FlowError`, `GroupFullError` and what a push raises; nothing
    has been changed then."""
    drafts = drafted(state, plan)
    named = {job_id for i in drafts.special for job_id in named_by(drafts, i)}
    tie_drafts(drafts, chain=chain, parent_id=None if parent is None else parent.job_id)
    known_done = on_file_only(state, named)
    storage = state.storage
    records = drafts.records
    durable = any(records[i].options.durable for i in drafts.special)
    if storage is not None and (durable or storage.troubled):
        refuse(state, durable=durable)
    owner = None if parent is None else state.index.get(parent.job_id)
    if parent is not None and owner is None:
        raise missing(state, parent.job_id, None)
    queues: dict[str, QueueState] = {}
    for record, node in zip(records, plan.nodes, strict=True):
        queue = queues.get(node.queue)
        if queue is None:
            queue = queues[node.queue] = find_queue(state, node.queue)
        record.queue = queue
    shards = {queue.shard for queue in queues.values()}
    if owner is not None:
        shards.add(owner.queue.shard)
        if named:
            # whether that leads back to the parent can be seen only while nobody changes any tie
            shards.update(state.shards.shards)

    def add(held: Sequence[Shard]) -> tuple[list[JobSnapshot], int]:
        added = _add(state, drafts, owner, parent, held, known_done)
        return added, storage.cut if durable and storage is not None else 0

    jobs, cut = state.shards.holding(shards, add)
    _after(shards)
    if not state.alarm.served:
        state.alarm.start()
    settle(state, cut, jobs[-1]._id)
    return jobs


def _add(
    state: State,
    drafts: Drafts,
    owner: JobRecord | None,
    parent: Parent | None,
    held: Sequence[Shard],
    known_done: frozenset[str],
) -> list[JobSnapshot]:
    """Adds them all, or none; all their shards are held, and that of the parent."""
    records = drafts.records
    for shard in held:
        if shard.gate:
            enter(state, shard)
    now = state.now()
    if parent is not None and owner is not None:
        _refuse_parent(state, owner, parent, drafts)
    _refuse_drafts(state, drafts, now, known_done)
    for shard in held:
        shard.gate = BROKEN
    try:
        if owner is not None:
            _adopt(state, owner, records[-1], now)
        jobs = _admit_all(state, drafts, now, known_done)
    except BaseException:
        _undo(owner, records)
        raise
    for shard in held:
        shard.gate = OPEN
    return jobs


def _after(shards: Iterable[Shard]) -> None:
    for shard in shards:
        if shard.after:
            shard.call_after()


# -- under the locks -------------------------------------------------------------------------------


def _refuse_drafts(state: State, drafts: Drafts, now: int, known_done: frozenset[str]) -> None:
    """Refuses what can be seen now alone; that concerns jobs with options."""
    coming: dict[tuple[str, str], int] = {}
    custom_ids: set[tuple[str, str]] = set()
    for i in drafts.special:
        record, own = drafts.records[i], drafts.owns[i]
        queue: QueueState = record.queue
        refused: BunqueueError | None = None
        if record.custom_id is not None:
            holder = queue.custom_ids.get(record.custom_id)
            name = (queue.name, record.custom_id)
            if holder is not None and holder.state <= ACTIVE:
                refused = FlowError(
                    f"{drafts.plan.path(i)}: custom_id {record.custom_id!r} of queue "
                    f"{queue.name!r} is that of live job {holder.id}; a flow needs jobs of its own"
                )
            elif name in custom_ids:
                refused = FlowError(
                    f"{drafts.plan.path(i)}: custom_id {record.custom_id!r} of queue "
                    f"{queue.name!r} comes twice"
                )
            custom_ids.add(name)
        if own.group is not None:
            group = (queue.name, own.group)
            n = coming[group] = coming.get(group, 0) + 1
            refused = refused or _group_full(queue, record, own, n, drafts.plan.path(i), now)
        if own.depends_on and refused is None:
            # of its ties only these can be unknown: the rest comes with it
            refused = _unknown(state, named_by(drafts, i), known_done, drafts.plan.path(i))
        if refused is not None:
            raise refused


def _group_full(
    queue: QueueState, record: JobRecord, own: Own, coming: int, path: str, now: int
) -> GroupFullError | None:
    if own.group_limit is None or own.group is None:
        return None
    full = group_full(queue, record, own, now)
    if full is not None:
        return GroupFullError(f"{path}: {full}")
    group = None if queue.groups is None else queue.groups.by_name.get(own.group)
    waiting = 0 if group is None else group.pending_total
    if waiting + coming <= own.group_limit:
        return None
    return GroupFullError(
        f"{path}: group {own.group!r} of queue {queue.name!r} has {waiting} waiting jobs, and this "
        f"flow would add {coming}; group_limit={own.group_limit} allows no more"
    )


def _unknown(
    state: State, job_ids: Sequence[str], known_done: frozenset[str], path: str
) -> FlowError | None:
    error = first_unknown(state, job_ids, known_done)
    return None if error is None else FlowError(f"{path}: {error}")


def _refuse_parent(
    state: State,
    owner: JobRecord,
    parent: Parent,
    drafts: Drafts,
) -> None:
    if owner.state == REMOVED:
        raise not_found(owner.id)
    if owner.state > ACTIVE:
        seen = owner.queue.state_of(owner, state.now(), state.wall())
        raise JobStateError(
            f"job {owner.id} is {seen} and takes no children any more", job_id=owner.id
        )
    if parent.held:
        refused = judge_token(owner, parent.token, late_ack=False)
        if refused is not None:
            if refused is NO_JOB:
                raise not_found(owner.id)
            answer(owner, refused)
            raise JobStateError(
                f"this run of job {owner.id} has lost its lock, so it adds no children",
                job_id=owner.id,
            )
    above = _level(state, owner)
    levels = drafts.plan.levels
    if above + levels > MAX_LEVELS:
        raise FlowError(
            f"job {owner.id} is at level {above} of its flow: {levels} more would be more than "
            f"{MAX_LEVELS}"
        )
    for i in drafts.special:
        for job_id in named_by(drafts, i):
            cycle = _way(state, job_id, owner.id)
            if cycle is not None:
                path = drafts.plan.path(i)
                way = " -> ".join([owner.id, path, *cycle])
                raise FlowError(f"{path} would wait for its own parent: {way}")


def _level(state: State, record: JobRecord) -> int:
    level = 1
    seen = {record.id}
    while level < MAX_LEVELS:
        links = links_of(record)
        above = None if links is None or links.parent_id is None else links.parent_id
        found = None if above is None or above in seen else state.index.get(above)
        if found is None:
            break
        seen.add(found.id)
        record = found
        level += 1
    return level


def _way(state: State, start: str, goal: str) -> list[str] | None:
    """How one comes from job to job, each waiting for the next, from start to goal. Every shard is
    held."""
    came: dict[str, str | None] = {start: None}
    stack = [start]
    while stack:
        at = stack.pop()
        if at == goal:
            way = [at]
            while (back := came[way[-1]]) is not None:
                way.append(back)
            return way[::-1]
        record = state.index.get(at)
        links = None if record is None else links_of(record)
        for other in () if links is None else links.waited_for():
            if other not in came:
                came[other] = at
                stack.append(other)
    return None


def _admit_all(
    state: State, drafts: Drafts, now: int, known_done: frozenset[str]
) -> list[JobSnapshot]:
    """Publishes them in their order, so that whoever waits comes behind what it waits for."""
    jobs: list[JobSnapshot] = []
    quiet, index, view = not state.events.any, state.index, state.view
    for record, own in zip(drafts.records, drafts.owns, strict=True):
        queue: QueueState = record.queue
        side = record.side
        if (
            quiet
            and own is NAMED
            and (side is None or side.common is not None)
            and record.custom_id is None
            and record.options.is_plain
            and not queue.waiters.line
        ):
            # `admitted` in short: it comes in as a plain job does, though it has a parent
            record.created_ms = record.run_at_ms = record.entered_ms = now
            queue.admitted += 1
            queue.seq += 1
            index[record.id] = record
            if record.priority == 0:
                queue.ready.append(record, queue.seq)
            else:
                queue.ready.admit(record, queue.seq)
            if queue.shard.dirty is not None:
                mark_new(queue, record)
            fields = new_fields(record, queue.name, now, None if side is None else side.view)
            jobs.append(view(record.id, None, fields))
        else:
            # a job that depends on none but those of the flow has nobody to look at
            fresh = not own.depends_on
            jobs.append(admitted(state, queue, record, own, now, known_done, fresh=fresh))
    return jobs


def _adopt(state: State, owner: JobRecord, child: JobRecord, now: int) -> None:
    """The parent has one more child; if it waited for its turn, it waits for the child now."""
    queue: QueueState = owner.queue
    side = owner.need_side()
    links = side.links = Links() if side.links is None else side.links.owned()
    side.view = None
    tie = links_of(child)
    links.add(child.id, 0 if tie is None else tie.on_failure, child=True)
    state.dependencies.register(owner.id, (child.id,))
    if owner.state == PENDING:
        queue.unplace(owner, now)
        owner.gate(now)
        queue.gate(owner)
    mark(queue, owner)
    mark_edges(queue, owner, links)


def _undo(owner: JobRecord | None, records: Sequence[JobRecord]) -> None:
    """An exception has landed in the section: the rebuild that follows finds none of them."""
    for record in records:
        if record.state != REMOVED:
            record.remove()
    if owner is not None:
        links = links_of(owner)
        if links is not None:
            links.drop(records[-1].id)
            if owner.state == GATED and not links.unmet:
                owner.unblock(owner.entered_ms)
