"""Lost deliveries: the stall check of those without a lock, and the one verdict on all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from ..model.failure import Failure
from ..model.job import ACTIVE, Delivery, JobRecord
from ..model.settings import StallSettings
from ..shard.deadlines import LEASE, STALL
from ..shard.shard import BROKEN, OPEN, Shard
from ..shard.stalls import due_of, watch
from ..state import State
from .commit import keep_up
from .fail import end_run
from .finish import emit
from .mark import mark_queue
from .push import find_queue
from .recover import enter

BITE = 64
FLOOR_MS = 5_000
"""What a late pass leaves every lease and timeout at least, so that heartbeats that were frozen
too find them alive."""

PERIOD_MS = 5_000
"""The precision of the stall check; a pass later than half of it is late."""

MAX_IN_A_ROW = 3
"""How often in a row a lateness is forgiven."""

BEATS = 3
"""How often a worker renews a lease in its time, unless told otherwise."""


class Freeze(NamedTuple):
    """The process, or the threads that mind leases, stood still for `late_ms`, until `ended_ms`."""

    ended_ms: int
    late_ms: int

    def holds_up(self, lease_ms: int) -> bool:
        """Whether it was longer than half of the time between two heartbeats for such a lease, or
        of the stall check's period, if that is less."""
        return self.late_ms * 2 * BEATS > min(lease_ms, PERIOD_MS * BEATS)


def judge(state: State, delivery: Delivery, failure: Failure, wait_ms: int, now: int) -> None:
    """The delivery is lost: its lock expired, or it had none and stayed silent. Charges the
    attempt and a stall, then retries the job or ends it. Its shard is held, and the caller has
    looked that the delivery is the current one."""
    record = delivery.record
    if state.events.any:
        emit(state, record.queue, "stalled", record.id, now, {"error": failure.error})
    end_run(state, record.queue, record, failure, wait_ms, now, by_sweep=True)


def looks_alive(shard: Shard, delivery: Delivery, now: int) -> bool:
    """Whether a delivery without a lock that was to be looked at is given more time: until its
    last heartbeat is old enough, or, once it is suspected, for the time to speak up. It stands in
    the deadlines again then; `False` means lost. Its shard is held."""
    settings: StallSettings = delivery.record.queue.stalls
    if not settings.enabled or delivery.expires_ms is not None:
        return True
    due = due_of(delivery, settings)
    if due <= now:
        if delivery.suspected_ms is not None:
            return False
        delivery.suspected_ms = now
        due = due_of(delivery, settings)
    delivery.armed_ms = due
    shard.deadlines.push(due, STALL, delivery)
    return True


def spare(shard: Shard, delivery: Delivery, freezes: Sequence[Freeze], now: int) -> bool:
    """Whether a lease that has expired is given more time, because one of those freezes held its
    heartbeats up: 5 s, or its whole length if that is less, from the end of the freeze. It stands
    in the deadlines again then. Not for the fourth time with no heartbeat between. Its shard is
    held."""
    lease_ms = delivery.lease_ms
    if lease_ms is None:
        return False
    for freeze in freezes:
        # a millisecond less than a heartbeat would give, by which the two are told apart
        until = freeze.ended_ms + min(lease_ms, FLOOR_MS) - 1
        if until <= now or not freeze.holds_up(lease_ms):
            continue
        times, last = getattr(delivery, "spared", (0, None))
        times = times + 1 if last == delivery.expires_ms else 1
        if times > MAX_IN_A_ROW:
            return False
        delivery.spared = times, until
        delivery.expires_ms = delivery.armed_ms = until
        shard.deadlines.push(until, LEASE, delivery)
        return True
    return False


def configure(state: State, queue_name: str, settings: StallSettings) -> None:
    """Sets how the queue finds lost runs; those under way are judged by it too. O(active), in one
    unit."""
    queue = find_queue(state, queue_name)
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        shard.gate = BROKEN
        queue.stalls = settings
        mark_queue(queue)
        for record in queue.active.values():
            delivery = record.delivery
            if delivery is not None and delivery.expires_ms is None:
                due = watch(shard.deadlines, delivery, settings)
                if due is not None and due < state.alarm.due_ms:
                    state.alarm.set(max(due, now))
        shard.gate = OPEN
    keep_up(state)


def settings_of(state: State, queue_name: str) -> StallSettings:
    """How the queue finds lost runs."""
    queue = state.queues.get(queue_name)
    return StallSettings() if queue is None else queue.stalls


def forgive(state: State, late_ms: int, give_way: Callable[[], None]) -> int:
    """Moves the leases, heartbeats and timeouts of all deliveries forward by that delay, for who
    sent no heartbeat was as frozen as the pass that would judge it. None goes further than a
    heartbeat right now would bring it, and each is left 5 s. Calls `give_way` between two
    bites. Returns how many there were.

    Only moments are written, and the deadlines follow when they come due: an exception in between
    leaves nothing at odds.
    """
    moved = 0
    for shard in state.shards.shards:
        records = _active(shard)
        while bite := list(islice(records, BITE)):
            with shard.lock:
                if shard.gate:
                    enter(state, shard)
                now = state.now()
                for record in bite:
                    if record.delivery is not None and record.state == ACTIVE:
                        _forgive(record.delivery, late_ms, now)
                        moved += 1
            give_way()
    return moved


def _active(shard: Shard) -> Iterator[JobRecord]:
    """The records that are active now. Without the lock: a list of a dictionary's values is made
    in one step, and with 100,000 of them nobody should have to wait. What begins meanwhile was not
    frozen; what ends is looked at again before it is moved."""
    for queue in list(shard.queues.values()):
        yield from list(queue.active.values())


def _forgive(delivery: Delivery, late_ms: int, now: int) -> None:
    floor = now + FLOOR_MS
    if delivery.expires_ms is None:
        delivery.beat_ms = min(delivery.beat_ms + late_ms, now)
        delivery.suspected_ms = None
    elif delivery.lease_ms is not None:
        moved = max(delivery.expires_ms + late_ms, floor)
        # never back: what was renewed since the delay may stand further off already
        delivery.expires_ms = max(delivery.expires_ms, min(moved, now + delivery.lease_ms))
    allowed = delivery.record.options.timeout_ms
    if delivery.timeout_ms is not None and allowed is not None:
        moved = max(delivery.timeout_ms + late_ms, floor)
        delivery.timeout_ms = max(delivery.timeout_ms, min(moved, now + allowed))
