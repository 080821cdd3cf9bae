"""Pull: the next job goes out, held by a delivery.

It is over 400 lines because its short ways repeat, in line, what its general way does.
"""

from __future__ import annotations

from heapq import heappush

from ..clock import Clock
from ..model.job import Delivery, JobRecord
from ..model.side import side_view
from ..model.snapshot import UNREAD, JobSnapshot
from ..shard.deadlines import LEASE, TIMEOUT
from ..shard.keys import LIMIT
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..shard.stalls import watch
from ..shard.waiters import Waiter
from ..state import State
from ..stores.timings import SAMPLED
from ..types import ANY, GroupChoice, JobState
from .bulk import take_plain
from .careful import hand_over, is_alone
from .expire import expire, is_expired
from .mark import mark_start
from .push import find_queue
from .recover import enter

_ACTIVE = JobState.ACTIVE


def pull(
    state: State,
    queue_name: str,
    limit: int,
    timeout_ms: int | None,
    lease_ms: int | None,
    owner: str | None,
    waiter: Waiter | None = None,
    *,
    group: GroupChoice = ANY,
    claim: bool = False,
) -> list[JobSnapshot]:
    """Delivers up to `limit` jobs; waits for the first up to `timeout_ms` (`None`: without end).

    `group`: whose jobs. With `claim`, all but the first are handed out unstarted (`begin` starts
    them), and none that has a timeout or a ttl. `waiter` lets another thread end the wait with
    `cancel`.
    """
    timings = state.timings
    queue: QueueState | None
    try:
        queue = state.queues[queue_name]
    except (KeyError, TypeError):
        queue = None
    if queue is None:
        # not in there: an error of the name's should not come with that one
        queue = find_queue(state, queue_name)
    began_ns = 0
    if timings is not None and not (queue.completed_total + len(queue.active)) & SAMPLED:
        began_ns = timings.now_ns()
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        if waiter is not None and waiter.cancelled:
            return []
        shard.gate = BROKEN
        views = _take(state, queue, limit, lease_ms, owner, group, claim)
        shard.gate = OPEN
    if began_ns and timings is not None and views:
        timings.pull.end(began_ns)
    if shard.after:
        shard.call_after()
    if not state.alarm.served:
        state.alarm.start()
    if not views and timeout_ms != 0:
        views = _wait(
            state, queue, limit, timeout_ms, lease_ms, owner, waiter or Waiter(group), claim=claim
        )
    if views and shard.dirty is not None:
        hand_over(state, queue, views)
    return views


def pull_one(
    state: State,
    queue_name: str,
    timeout_ms: int | None,
    lease_ms: int | None,
    owner: str | None,
    group: GroupChoice = ANY,
) -> JobSnapshot | None:
    """`pull` for one job: the next one, or `None`."""
    timings = state.timings
    queue: QueueState | None
    try:
        queue = state.queues[queue_name]
    except (KeyError, TypeError):
        queue = None
    if queue is None:
        # not in there: an error of the name's should not come with that one
        queue = find_queue(state, queue_name)
    began_ns = 0
    if timings is not None and not (queue.completed_total + len(queue.active)) & SAMPLED:
        began_ns = timings.now_ns()
    shard, clock = queue.shard, state.now
    view: JobSnapshot | None
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = clock()
        shard.gate = BROKEN
        groups = queue.groups
        if (
            queue.delayed.members
            or queue.anchored.members
            or queue.paused
            or queue.limits is not None
            or group is not ANY
            or (groups is not None and (groups.timers or groups.passing))
        ):
            views = _take(state, queue, 1, lease_ms, owner, group, False)
            view = views[0] if views else None
        else:
            # the short way of _take, in line: nothing but ready jobs
            ready = queue.ready
            records, lanes = ready.lane.records, ready.lanes
            record = None
            if not ready.heap:
                # of its `pop`, what finds most jobs
                if lanes is not None and lanes.order:
                    record = lanes.pop_high()
                elif records:
                    record = records.popleft()
                    if not 0 < record.key < LIMIT:
                        records.appendleft(record)
                        record = None
            if record is None:
                if groups is None or records or ready.heap or lanes is not None:
                    record = ready.pop()
                if record is None and groups is not None:
                    record = groups.pop()
            if record is None:
                view = None
            elif (
                record.options.runs_alone
                or record.started_ms is not None
                or groups is not None
                or lease_ms is None
            ):
                if record.options.ttl_ms is not None:
                    record = _next_unexpired(state, queue, record, group, now)
                view = (
                    None
                    if record is None
                    else start_run(state, queue, record, now, lease_ms, owner, True)
                )
            else:
                # the short way of start_run, in line: the first run of a job without a group, a ttl
                # or a timeout
                side = record.side
                new_token = state.new_token
                token, expires_ms, job_id = new_token(), now + lease_ms, record.id
                delivery = Delivery()
                delivery.record = record
                delivery.token = token
                delivery.owner = owner
                delivery.lease_ms = lease_ms
                delivery.expires_ms = delivery.armed_ms = expires_ms
                delivery.begun = True
                delivery.timeout_ms = None
                record.start(delivery, now)
                queue.started_ms = now
                queue.active[job_id] = record
                deadlines = shard.deadlines
                heappush(deadlines.heap, (expires_ms, next(deadlines.numbers), LEASE, delivery))
                if expires_ms < state.alarm.due_ms:
                    state.alarm.set(expires_ms)
                tell = state.events.active
                if tell is not None:
                    tell(queue, job_id, now, None)
                if shard.dirty is not None:
                    mark_start(shard.dirty, delivery)
                # a view of `fields_of`, in line
                view_type = state.view_type
                view = view_type()
                view._manager = state.manager
                view._value = UNREAD
                view.duplicate = False
                view._id = job_id
                view.token = token
                view._fields = (
                    queue.name,
                    record.name,
                    record.options,
                    record.data,
                    record.priority,
                    _ACTIVE,
                    record.created_ms,
                    record.run_at_ms,
                    now,
                    None,
                    record.attempts_made,
                    record.custom_id,
                    None if side is None else side_view(side),
                    record.unique_key,
                )
        shard.gate = OPEN
    if began_ns and timings is not None and view is not None:
        timings.pull.end(began_ns)
    if shard.after:
        shard.call_after()
    if not state.alarm.served:
        state.alarm.start()
    if view is None and timeout_ms != 0:
        views = _wait(state, queue, 1, timeout_ms, lease_ms, owner, Waiter(group), claim=False)
        view = views[0] if views else None
    if state.storage is not None and view is not None:
        if shard.careful_ms:
            hand_over(state, queue, (view,))
        else:
            state.storage.admit()
    return view


def _wait(
    state: State,
    queue: QueueState,
    limit: int,
    timeout_ms: int | None,
    lease_ms: int | None,
    owner: str | None,
    waiter: Waiter,
    *,
    claim: bool,
) -> list[JobSnapshot]:
    clock = state.clock
    deadline = None if timeout_ms is None else state.now() + timeout_ms
    try:
        while True:
            views, sleep_ms = look(state, queue, limit, deadline, lease_ms, owner, waiter, claim)
            if views is not None:
                return views
            _sleep(clock, waiter, sleep_ms)
    except BaseException:
        # Ctrl-C while waiting
        give_up(queue, waiter)
        raise


def look(
    state: State,
    queue: QueueState,
    limit: int,
    deadline: int | None,
    lease_ms: int | None,
    owner: str | None,
    waiter: Waiter,
    claim: bool,
) -> tuple[list[JobSnapshot] | None, int | None]:
    """One look of somebody who waits: what there is, possibly nothing where the time is up or the
    waiter cancelled; or `None`, when it stands in line and is to look again once it is woken, or
    after so many ms (`None`: no time matters)."""
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        # the head goes back to the head: whoever stands there minds the next moment
        first = queue.waiters.leave(waiter) or waiter.woken
        was_woken = waiter.woken
        shard.gate = BROKEN
        views = []
        if not waiter.cancelled:
            views = _take(state, queue, limit, lease_ms, owner, waiter.affinity, claim)
        now = state.now()
        done = bool(views) or waiter.cancelled or (deadline is not None and now >= deadline)
        until = None
        if done:
            _pass_on(state, queue, now, wake=was_woken)
        else:
            if queue.ready_count:
                # what it was woken for, or what its timer told of, may be for another
                queue.wake(1, now, timer=False)
            queue.waiters.join(waiter, first=first)
            until = _sleep_until(state, queue, waiter, now, deadline)
        shard.gate = OPEN
    if shard.after:
        # a job that had expired may be one that others wait for
        shard.call_after()
    if done:
        return views, None
    return None, None if until is None else max(0, until - now)


def give_up(queue: QueueState, waiter: Waiter) -> None:
    """The waiter waits no more: neither a wake meant for one that is gone nor the timer that it
    held as the head of the line may be lost."""
    with queue.lock:
        queue.waiters.leave(waiter)
        queue.waiters.wake(1)


def _sleep(clock: Clock, waiter: Waiter, timeout_ms: int | None) -> None:
    clock.wait(waiter.lock, timeout_ms)


def _sleep_until(
    state: State, queue: QueueState, waiter: Waiter, now: int, deadline: int | None
) -> int | None:
    """When this waiter must look again by itself; the head of the line also minds the next due
    moment."""
    if queue.waiters.line[0] is waiter and not queue.paused:
        due = queue.next_due(now, state.wall())
        queue.waiters.timer_ms = due
        if due is not None and (deadline is None or due < deadline):
            return due
    elif queue.groups is not None and not queue.paused:
        # the head may not know of this moment: it mattered to nobody until now
        due = queue.next_due(now, state.wall())
        if due is not None:
            queue.waiters.due(due)
    return deadline


def _pass_on(state: State, queue: QueueState, now: int, *, wake: bool) -> None:
    """A waiter leaves: if work remains or a timer must be held, the next in line looks."""
    if not queue.waiters.line or queue.paused:
        return
    # whoever was woken, or came because time made room, may leave room for others
    if queue.ready_count and (wake or queue.limits is not None or queue.groups is not None):
        queue.wake(1, now)
    if queue.waiters.line and queue.next_due(now, state.wall()) is not None:
        queue.waiters.wake(1)


def _take(
    state: State,
    queue: QueueState,
    limit: int,
    lease_ms: int | None,
    owner: str | None,
    group: GroupChoice,
    claim: bool,
) -> list[JobSnapshot]:
    """Up to `limit` deliveries; the shard's lock is held."""
    if queue.paused:
        return []
    now = state.now()
    if (
        limit == 1
        and group is ANY
        and queue.groups is None
        and queue.limits is None
        and not queue.delayed.members
        and not queue.anchored.members
    ):
        # nothing but ready jobs: what follows comes to this
        record = queue.ready.pop()
        if record is not None and record.options.ttl_ms is not None:
            record = _next_unexpired(state, queue, record, group, now)
        if record is None:
            return []
        return [start_run(state, queue, record, now, lease_ms, owner, True)]
    moved = _promote(state, queue, now)
    opened = 0
    if queue.limits is not None or queue.groups is not None:
        if queue.groups is not None:
            opened = queue.groups.open_due(now)
        limit = min(limit, queue.room(now))
        if claim and (
            queue.limits is not None or (queue.groups is not None and queue.groups.limited)
        ):
            # what one thread holds unstarted would count as running
            limit = min(limit, 1)
    views: list[JobSnapshot] = []
    ready = queue.ready
    ungrouped = group is ANY and queue.groups is None
    # in here jobs become ready by time alone
    timed = bool(queue.delayed.members or queue.anchored.members)
    if (
        limit > 1
        and lease_ms is not None
        and ungrouped
        and queue.limits is None
        and not (timed or ready.heap or ready.lanes is not None or queue.shard.careful_ms)
    ):
        take_plain(state, queue, limit, now, lease_ms, owner, views, claim=claim)
        if views and claim:
            # whatever comes next must not wait in a batch
            limit = len(views)
    while len(views) < limit:
        record = ready.pop() if ungrouped else queue.next_record(group)
        if record is not None and record.options.ttl_ms is not None:
            record = _next_unexpired(state, queue, record, group, now)
        if record is None:
            # a batch may want more than one bite of what is due
            more = _promote(state, queue, now) if timed else 0
            if not more:
                break
            moved += more
            continue
        views.append(start_run(state, queue, record, now, lease_ms, owner, not views or not claim))
        if len(views) < limit:
            if timed:
                # a bite for each job: what is due beyond the first has its place by priority
                moved += _promote(state, queue, now)
            if claim:
                following = ready.peek()
                if following is None and queue.groups is not None:
                    following = queue.groups.peek()
                until = queue.shard.careful_ms
                if (
                    following is None
                    or ((until or record.options.runs_alone) and is_alone(record, until))
                    or ((until or following.options.runs_alone) and is_alone(following, until))
                ):
                    break
    if queue.waiters.line:
        # what was taken need not be what came due, unless all are of one kind
        plain = queue.groups is None and not queue.waiters.picky
        available = moved - len(views) if plain else moved + opened
        if available > 0:
            queue.wake(available, now)
    return views


def _promote(state: State, queue: QueueState, now: int) -> int:
    """Moves what has come due to the ready queues; returns how many."""
    if queue.delayed.members or queue.anchored.members:
        return queue.promote_due(now, state.wall())
    return 0


def _next_unexpired(
    state: State, queue: QueueState, record: JobRecord | None, group: GroupChoice, now: int
) -> JobRecord | None:
    """The record if its ttl has not run out; otherwise ends it, and returns the next that may
    run."""
    while record is not None and is_expired(record, now):
        # back to its place first: an expired job ends as every pending one does
        queue.put_back(record, group, now)
        expire(state, queue, record, now)
        record = queue.next_record(group)
    return record


def start_run(
    state: State,
    queue: QueueState,
    record: JobRecord,
    now: int,
    lease_ms: int | None,
    owner: str | None,
    begun: bool,
) -> JobSnapshot:
    """Delivers the record, which has left its place: under a new token, and begun or not."""
    shard = queue.shard
    options = record.options
    expires_ms = None if lease_ms is None else now + lease_ms
    token = state.new_token()
    delivery = Delivery.of(record, token, owner, lease_ms, expires_ms, begun)
    if record.started_ms is not None:
        # what is given back unbegun has not started anew
        delivery.before_ms = record.started_ms
    if lease_ms is None:
        # before the record is active: a rebuild looks at both
        delivery.beat_ms = now
        delivery.suspected_ms = None
    # before it is active: an exception between must not leave a start that no window knows of
    if queue.limits is not None:
        queue.limits.started(now)
    side, groups = record.side, queue.groups
    if groups is not None and side is not None and side.group is not None:
        groups.start(side.group, now)
    unstarted = record.started_ms is None
    record.start(delivery, now)
    if unstarted and options.ttl_ms is not None:
        # only now, as `drop_ttl` says
        shard.deadlines.drop()
    queue.started_ms = now
    queue.active[record.id] = record
    if expires_ms is not None:
        deadlines = shard.deadlines
        heappush(deadlines.heap, (expires_ms, next(deadlines.numbers), LEASE, delivery))
        if expires_ms < state.alarm.due_ms:
            state.alarm.set(expires_ms)
    else:
        due = watch(shard.deadlines, delivery, queue.stalls)
        if due is not None and due < state.alarm.due_ms:
            state.alarm.set(due)
    if begun:
        if options.timeout_ms is not None:
            arm_timeout(state, queue, delivery, now)
        tell = state.events.active
        if tell is not None:
            tell(queue, record.id, now, None)
    if begun and shard.dirty is not None:
        mark_start(shard.dirty, delivery)
    # fields_of, in line
    return state.view(
        record.id,
        token,
        (
            queue.name,
            record.name,
            options,
            record.data,
            record.priority,
            _ACTIVE,
            record.created_ms,
            record.run_at_ms,
            now,
            None,
            record.attempts_made,
            record.custom_id,
            None if side is None else side_view(side),
            record.unique_key,
        ),
    )


def arm_timeout(state: State, queue: QueueState, delivery: Delivery, now: int) -> None:
    """The run begins now: its timeout is counted from here."""
    assert delivery.record.options.timeout_ms is not None
    delivery.timeout_ms = due = now + delivery.record.options.timeout_ms
    queue.shard.deadlines.push(due, TIMEOUT, delivery)
    if due < state.alarm.due_ms:
        state.alarm.set(due)
