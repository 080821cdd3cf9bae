"""What has come to lie about, put away: stale entries, expired keys and limits, empty queues.

Every call is one bounded hold of one shard's lock, and touches nothing that a live job needs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from heapq import heapify, heappop
from typing import NamedTuple

from ..model.job import REMOVED, JobRecord
from ..shard.deadlines import SWEEP_AT
from ..shard.groups import Groups
from ..shard.queue_state import QueueState
from ..shard.settings import settings_body
from ..shard.shard import BROKEN, OPEN, Shard
from ..state import State
from .mark import mark_queue
from .recover import enter
from .tally import keep_tally

ENTRIES_BITE = 512
"""How many entries of an index one hold looks at."""
KEYS_BITE = 256
QUEUES_BITE = 32


def ask(state: State) -> None:
    """Something was removed: the clean-up looks round soon. Called with no lock held."""
    state.cleanup.arm(state.now() + state.periods.cleanup_interval)
    if not state.alarm.served:
        state.alarm.start()


def ask_at(state: State, moment_ms: int | None) -> None:
    """A setting ends by itself then (`None`: it does not). Called with no lock held."""
    if moment_ms is not None and moment_ms > state.now():
        state.cleanup.arm(moment_ms)
        if not state.alarm.served:
            state.alarm.start()


def has_much_stale(shard: Shard, share: float) -> bool:
    """Whether more than that share of the shard's deadlines is stale, as far as that is counted,
    or a sweep of them has not come to its end. Takes no lock: a guess is enough to look."""
    deadlines = shard.deadlines
    if deadlines.old:
        return True
    return deadlines.stale > SWEEP_AT and deadlines.stale > share * len(deadlines)


def sweep_deadlines(state: State, shard: Shard, *, begin: bool) -> tuple[int, bool]:
    """Takes the stale ones of up to 512 deadlines out; returns how many, and whether the sweep,
    which is begun unless one is under way, has not come to its end."""
    with shard.lock:
        if shard.gate:
            enter(state, shard)
        shard.gate = BROKEN
        deadlines = shard.deadlines
        if begin and not deadlines.old:
            deadlines.begin_sweep()
        gone = deadlines.sweep_some(ENTRIES_BITE)
        shard.gate = OPEN
        return gone, bool(deadlines.old)


def has_stale_heads(shard: Shard) -> bool:
    """Whether most of the order of the queues by their oldest completed job is of jobs that have
    left, or it is being made anew. Takes no lock."""
    return bool(shard.heads.old) or len(shard.heads) > SWEEP_AT + 2 * len(shard.queues)


def push_heads(state: State, shard: Shard, names: Sequence[str], *, begin: bool) -> None:
    """Goes on with making that order anew, with those queues; `begin` is for the first of them."""
    with shard.lock:
        if shard.gate:
            enter(state, shard)
        shard.gate = BROKEN
        if begin:
            shard.heads.begin_anew()
        for name in names:
            queue = shard.queues.get(name)
            if queue is not None:
                shard.heads.push(queue)
        shard.gate = OPEN


def end_heads(state: State, shard: Shard) -> int:
    """That order is made anew; returns how many entries the one before had left."""
    with shard.lock:
        if shard.gate:
            enter(state, shard)
        shard.gate = BROKEN
        before = shard.heads.end_anew()
        shard.gate = OPEN
    # after the lock is released: to let go of a million entries takes its time
    gone = len(before)
    before.clear()
    return gone


class Tidied(NamedTuple):
    """What was put away in one queue, whether more is left to put away now, and when something of
    it ends by itself next (`None`: nothing does)."""

    done: int
    again: bool
    next_ms: int | None


def tidy_queues(state: State, shard: Shard, names: Sequence[str]) -> list[tuple[str, Tidied]]:
    """Lets go what has expired in those queues of the shard: held keys, limits, groups. At most
    256 keys and as many groups each."""
    found: list[tuple[str, Tidied]] = []
    with shard.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        for name in names:
            queue = shard.queues.get(name)
            if queue is not None:
                shard.gate = BROKEN
                found.append((name, _tidy(queue, now)))
                shard.gate = OPEN
    return found


def _tidy(queue: QueueState, now: int) -> Tidied:
    keys = queue.unique_keys.let_expired_go(now, KEYS_BITE)
    done, moments = keys, [queue.unique_keys.next_ms()]
    if queue.limits is not None:
        if queue.limits.is_idle(now):
            queue.limits = None
            mark_queue(queue)
            done += 1
        else:
            moments.append(queue.limits.ends_ms())
    passed = 0
    if queue.groups is not None:
        _sweep_groups(queue.groups)
        passed = _let_groups_pass(queue.groups, now)
        moments.append(queue.groups.passing[0][0] if queue.groups.passing else None)
    ahead = min((m for m in moments if m is not None and m > now), default=None)
    return Tidied(done + passed, keys >= KEYS_BITE or passed >= KEYS_BITE, ahead)


def _let_groups_pass(groups: Groups, now: int) -> int:
    """Lets the groups go that had nothing but a setting which has ended by time."""
    passed = 0
    passing = groups.passing
    while passing and passing[0][0] <= now and passed < KEYS_BITE:
        groups.forget_bare(heappop(passing)[2], now)
        passed += 1
    return passed


def _sweep_groups(groups: Groups) -> None:
    """Takes the moments out that no longer matter to any group, if there are more of them than of
    groups. O(what is there)."""
    most = SWEEP_AT + 2 * len(groups.by_name)
    if len(groups.timers) > most:
        groups.timers = [entry for entry in groups.timers if entry[2].timer_ms == entry[0]]
        heapify(groups.timers)
    if len(groups.passing) > most:
        # one for each group that is there, the earliest
        first = {entry[2].name: entry for entry in sorted(groups.passing, reverse=True)}
        groups.passing = [e for e in first.values() if groups.by_name.get(e[2].name) is e[2]]
        heapify(groups.passing)


Signature = tuple[int, int, int]


def signature_if_empty(state: State, shard: Shard, name: str) -> Signature | None:
    """What would be another if anything had happened in that queue since, if nothing is in it,
    set for it or waiting for it now; `None` otherwise."""
    with shard.lock:
        queue = shard.queues.get(name)
        if queue is None or shard.gate or not is_bare(queue):
            return None
        return (queue.admitted, queue.completed_total + queue.failed_total, queue.event_seq)


def is_bare(queue: QueueState) -> bool:
    """Whether the queue has neither jobs, keys, settings nor anybody who waits. Its shard is
    held."""
    groups = queue.groups
    return not (
        not queue.is_idle
        or len(queue.completed)
        or len(queue.dead)
        or queue.custom_ids
        or queue.counted
        or len(queue.unique_keys)
        or queue.waiters.line
        or queue.empty_waiters
        or (groups is not None and (groups.by_name or groups.defaults))
        or settings_body(queue) is not None
    )


def can_let_queues_go() -> bool:
    """Whether this interpreter can tell that nobody else is about to use a queue."""
    locked = getattr(sys, "_is_gil_enabled", None)
    return sys.implementation.name == "cpython" and (locked is None or locked())


def let_go(state: State, shard: Shard, name: str, unchanged: Signature) -> bool:
    """Lets the queue go if nothing has happened in it since, it is bare, and no other thread holds
    it, in a verb that has looked it up and waits for the lock; says whether it is gone.

    Whoever looks it up from now on makes a new one, under this lock. Before it leaves for good the
    references to it are counted, so that a job cannot come into a queue that nobody finds again:
    `test_a_queue_that_somebody_is_about_to_use_is_not_let_go` would notice.
    """
    if signature_if_empty(state, shard, name) != unchanged:
        return False
    with shard.lock:
        queue = shard.queues.get(name)
        if queue is None or shard.gate or not is_bare(queue):
            return False
        shard.gate = BROKEN
        # stale marks of jobs that have left know it too
        queue.clear()
        known = _own_references(shard, queue)
        del shard.queues[name]
        state.queues.pop(name, None)
        stranger = object()
        # this frame's reference and the call's own are those of anything that only this frame knows
        gone = sys.getrefcount(queue) <= known + sys.getrefcount(stranger)
        if not gone:
            shard.queues[name] = queue
            state.queues[name] = queue
        else:
            keep_tally(queue)
        shard.gate = OPEN
    return gone


def _own_references(shard: Shard, queue: QueueState) -> int:
    """How many references to the queue its own parts have, and the shard's that look it up never
    again."""
    heads = shard.heads
    keys = queue.unique_keys.freed is not None
    groups = queue.groups is not None and queue.groups.let_go is not None
    return keys + groups + sum(entry[2] is queue for entry in heads.heap + heads.old)


def drop_strays(state: State, records: Sequence[JobRecord]) -> int:
    """Takes those of the records out of the index that stand for no job any more; returns how
    many."""
    gone = 0
    for record in records:
        if record.state != REMOVED:
            continue
        queue: QueueState = record.queue
        with queue.lock:
            if queue.shard.gate:
                enter(state, queue.shard)
            if record.state == REMOVED and state.index.get(record.id) is record:
                del state.index[record.id]
                gone += 1
    return gone
