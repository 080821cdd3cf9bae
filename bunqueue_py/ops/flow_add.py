"""A whole flow comes in, over several queues, as one unit: all of it or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..errors import (
    BunqueueError,
    FlowError,
    GroupFullError,
    JobStateError,
    SerializationError,
    ValidationError,
)
from ..model.flow_node import MAX_LEVELS, Planned
from ..model.job import ACTIVE, GATED, PENDING, REMOVED, JobRecord
from ..model.links import Links, checked_policy
from ..model.own import NAMED, Own
from ..model.side import Side, side_view
from ..model.snapshot import JobSnapshot, new_fields
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN, Shard
from ..state import State
from .ack import GONE as NO_JOB
from .ack import answer, judge_token
from .admit import admitted, group_full
from .archive import missing, not_found
from .commit import refuse, settle
from .draft import draft
from .mark import mark, mark_new
from .outcomes import links_of, mark_edges
from .push import find_queue
from .recover import enter
from .tie import on_file_only, unknown_dependency


class Draft(NamedTuple):
    """A job of a flow that nobody knows yet."""

    record: JobRecord
    own: Own
    path: str


class Parent(NamedTuple):
    """The job that a flow is added to, as its first root's parent: its id, the token of the
    delivery whose handler asks, and whether there is one."""

    job_id: str
    token: str | None
    held: bool


def add_flows(
    state: State, plan: Sequence[Planned], *, chain: bool = False, parent: Parent | None = None
) -> list[JobSnapshot]:
    """Adds all jobs of the plan in one unit, and returns them in its order. `chain`: each root
    waits for the one before. Raises `FlowError`, `GroupFullError` and what a push raises; nothing
    has been changed then."""
    drafts = _drafts(state, plan, chain=chain, parent=parent)
    known_done = on_file_only(
        state, {job_id for d in drafts for job_id in d.own.depends_on if isinstance(job_id, str)}
    )
    storage = state.storage
    durable = any(d.record.options.durable for d in drafts)
    if storage is not None and (durable or storage.troubled):
        refuse(state, durable=durable)
    owner = None if parent is None else state.index.get(parent.job_id)
    if parent is not None and owner is None:
        raise missing(state, parent.job_id, None)
    for d in drafts:
        d.record.queue = find_queue(state, d.record.queue)
    shards = {d.record.queue.shard for d in drafts}
    if owner is not None:
        shards.add(owner.queue.shard)
        if any(d.own.depends_on for d in drafts):
            # whether that leads back to the parent can be seen only while nobody changes any tie
            shards.update(state.shards.shards)
    with state.shards.locked(shards) as held:
        for shard in held:
            if shard.gate:
                enter(state, shard)
        now = state.now()
        if parent is not None and owner is not None:
            _refuse_parent(state, owner, parent, drafts, plan)
        _refuse_drafts(state, drafts, now, known_done)
        for shard in held:
            shard.gate = BROKEN
        try:
            if owner is not None:
                _adopt(state, owner, drafts[-1].record, now)
            quiet = not state.events.any
            jobs = [
                _leaf(state, d.record, now)
                if quiet and d.own is NAMED and _is_leaf(d.record)
                else admitted(state, d.record.queue, d.record, d.own, now, known_done)
                for d in drafts
            ]
        except BaseException:
            _undo(owner, drafts)
            raise
        for shard in held:
            shard.gate = OPEN
        cut = storage.cut if durable and storage is not None else 0
    _after(held)
    if not state.alarm.served:
        state.alarm.start()
    settle(state, cut, jobs[-1]._id)
    return jobs


def _after(shards: Iterable[Shard]) -> None:
    for shard in shards:
        if shard.after:
            shard.call_after()


# -- drafting ------------------------------------------------------------------------------------


def _drafts(
    state: State, plan: Sequence[Planned], *, chain: bool, parent: Parent | None
) -> list[Draft]:
    """A record for each node, tied together; whatever is wrong with one is told with its path."""
    drafts = [_drafted(state, place) for place in plan]
    before: str | None = None
    policy = 0
    leaves: dict[tuple[str, int], Side] = {}
    for place, d in zip(plan, drafts, strict=True):
        above = None if place.parent is None else drafts[place.parent].record.id
        if place.parent is None and parent is not None:
            above = parent.job_id
        on_failure = checked_policy(place.node.on_failure)
        if d.own is NAMED and above is not None and not place.children:
            # of a parent with very many children, most are such
            side = leaves.get((above, on_failure))
            if side is None:
                side = leaves[above, on_failure] = Side()
                side.links = Links(above, on_failure)
                side.view = side_view(side)
            d.record.side = side.twin()
            continue
        links = Links(above, on_failure)
        for child in place.children:
            links.add(
                drafts[child].record.id,
                checked_policy(plan[child].node.on_failure),
                child=True,
            )
        for job_id in d.own.depends_on:
            if not isinstance(job_id, str):
                raise ValidationError(f"{d.path}: depends_on: a flow's jobs are its children")
            links.add(job_id, d.own.on_dependency_failure, child=False)
        if place.parent is None and chain:
            if before is not None:
                links.add(before, policy, child=False)
            before, policy = d.record.id, links.on_failure
        if links.edges or links.parent_id is not None:
            d.record.need_side().links = links
    return drafts


def _drafted(state: State, place: Planned) -> Draft:
    node, path = place.node, place.path
    try:
        if "deduplication" in node.options or "repeat" in node.options:
            raise ValidationError("a flow's jobs can have neither deduplication nor repeat")
        queue = state.queues.get(node.queue)
        record, own = draft(state, queue, node.name, node.data, dict(node.options))
    except ValidationError as error:
        raise ValidationError(f"{path}: {error}") from error
    except SerializationError as error:
        raise SerializationError(f"{path}: {error}", path=error.path) from error
    except TypeError as error:
        raise TypeError(f"{path}: {error}") from error
    record.queue = node.queue
    return Draft(record, own or NAMED, path)


# -- under the locks -------------------------------------------------------------------------------


def _refuse_drafts(
    state: State, drafts: Sequence[Draft], now: int, known_done: frozenset[str]
) -> None:
    coming: dict[tuple[str, str], int] = {}
    custom_ids: set[tuple[str, str]] = set()
    for record, own, path in drafts:
        queue: QueueState = record.queue
        refused: BunqueueError | None = None
        if record.custom_id is not None:
            holder = queue.custom_ids.get(record.custom_id)
            name = (queue.name, record.custom_id)
            if holder is not None and holder.state <= ACTIVE:
                refused = FlowError(
                    f"{path}: custom_id {record.custom_id!r} of queue {queue.name!r} is that of "
                    f"live job {holder.id}; a flow needs jobs of its own"
                )
            elif name in custom_ids:
                refused = FlowError(
                    f"{path}: custom_id {record.custom_id!r} of queue {queue.name!r} comes twice"
                )
            custom_ids.add(name)
        if own.group is not None:
            group = (queue.name, own.group)
            n = coming[group] = coming.get(group, 0) + 1
            refused = refused or _group_full(queue, record, own, n, path, now)
        if own.depends_on and refused is None:
            # of its ties only these can be unknown: the rest comes with it
            refused = _unknown(state, queue, record, own, now, known_done, path)
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
    state: State,
    queue: QueueState,
    record: JobRecord,
    own: Own,
    now: int,
    known_done: frozenset[str],
    path: str,
) -> FlowError | None:
    outside = Links()
    for job_id in own.depends_on:
        outside.add(str(job_id), 0, child=False)
    side = record.need_side()
    kept, side.links = side.links, outside
    error = unknown_dependency(state, queue, record, now, known_done)
    side.links = kept
    return None if error is None else FlowError(f"{path}: {error}")


def _refuse_parent(
    state: State,
    owner: JobRecord,
    parent: Parent,
    drafts: Sequence[Draft],
    plan: Sequence[Planned],
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
    levels = 1 + max(place.path.count(".children[") for place in plan)
    if above + levels > MAX_LEVELS:
        raise FlowError(
            f"job {owner.id} is at level {above} of its flow: {levels} more would be more than "
            f"{MAX_LEVELS}"
        )
    for d in drafts:
        for job_id in d.own.depends_on:
            cycle = _way(state, str(job_id), owner.id)
            if cycle is not None:
                way = " -> ".join([owner.id, d.path, *cycle])
                raise FlowError(f"{d.path} would wait for its own parent: {way}")


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


def _is_leaf(record: JobRecord) -> bool:
    """Whether it comes in as a plain job does, though it has a parent: `admitted` in short."""
    side = record.side
    return (
        side is not None
        and side.view is not None
        and record.custom_id is None
        and record.options.is_plain
        and not record.queue.waiters.line
    )


def _leaf(state: State, record: JobRecord, now: int) -> JobSnapshot:
    """Publishes it, where nobody is to be told."""
    queue: QueueState = record.queue
    record.created_ms = record.run_at_ms = record.entered_ms = now
    queue.admitted += 1
    queue.seq += 1
    state.index[record.id] = record
    queue.ready.admit(record, queue.seq)
    mark_new(queue, record)
    fields = new_fields(record, queue.name, now)
    assert record.side is not None
    return state.view(record.id, None, (*fields[:12], record.side.view, fields[13]))


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


def _undo(owner: JobRecord | None, drafts: Sequence[Draft]) -> None:
    """An exception has landed in the section: the rebuild that follows finds none of them."""
    for d in drafts:
        if d.record.state != REMOVED:
            d.record.remove()
    if owner is not None:
        links = links_of(owner)
        if links is not None:
            links.drop(drafts[-1].record.id)
            if owner.state == GATED and not links.unmet:
                owner.unblock(owner.entered_ms)
