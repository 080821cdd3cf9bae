"""Workers that are silent: stale after a while, and then no longer among those who work here."""

from __future__ import annotations

from ..ops import owners, staff
from ..registry.workers import WorkerEntry
from ..state import State
from .scheduler import Report

CONFIRM_MS = 1_000
"""So long one that was found silent may still speak: what was frozen with it has its turn first."""
BACK_MS = 5_000
"""So soon a stale one that speaks again is seen."""


def mind(state: State) -> None:
    """A worker may be busy, or was found dead: has a pass look when it may count as stale."""
    state.staff.arm(state.now() + state.periods.worker_stale_after)


def died(state: State, entry: WorkerEntry) -> None:
    """Nothing of the worker runs any more, and nobody has closed it: it is silent from now on."""
    entry.lost_ms = state.now()
    mind(state)
    if not state.alarm.served:
        state.alarm.start()


def tick(state: State) -> Report:
    """Looks at every worker that holds jobs or was found dead. One that has been silent for
    `worker_stale_after`, and still is a second later, is told of as stale; when it has been silent
    for `worker_removed_after` it has left, and what it holds is given back, uncharged."""
    done, moments = 0, []
    for entry in state.workers.entries():
        looked, due = _look(state, entry)
        done += looked
        if due is not None:
            moments.append(due)
    return Report(done, min(moments, default=None))


def _look(state: State, entry: WorkerEntry) -> tuple[int, int | None]:
    now, periods = state.now(), state.periods
    if entry.card.alive:
        # it may have been given up while its threads were still being started
        entry.lost_ms = None
    elif entry.lost_ms is None:
        entry.lost_ms = now
    if entry.lost_ms is None and not entry.card.active:
        return staff.heard(state, entry, now), None
    silent = now - entry.seen_ms(now)
    if silent < periods.worker_stale_after:
        told = staff.heard(state, entry, now)
        return told, now + max(1, periods.worker_stale_after - silent)
    if entry.suspected_ms is None:
        entry.suspected_ms = now
        return 0, now + CONFIRM_MS
    if entry.stale_ms is None:
        if now - entry.suspected_ms < CONFIRM_MS:
            return 0, entry.suspected_ms + CONFIRM_MS
        staff.stale(state, entry, now)
    assert entry.stale_ms is not None
    # counted from when it was found, too: a process that was frozen finds everybody silent
    left = periods.worker_removed_after - silent
    left = max(left, entry.suspected_ms + _more(state) - now)
    if left > 0:
        return 0, now + min(left, BACK_MS)
    staff.leave(state, entry, "silent")
    owners.release_lost(state, entry)
    return 1, None


def _more(state: State) -> int:
    return state.periods.worker_removed_after - state.periods.worker_stale_after
