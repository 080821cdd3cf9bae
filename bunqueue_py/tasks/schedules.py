"""Schedulers: they fire when their moments come."""

from __future__ import annotations

from collections.abc import Callable

from ..ops.fire import fire_due, look_around, publish
from ..state import State
from .scheduler import Report

BITE = 256
RETRY_MS = 1_000

_tuple = tuple.__new__


def next_due(state: State) -> int | None:
    """When there is something to do, by the timeline."""
    now = state.now()
    return now if state.schedules.staged else state.schedules.next_ms(now, state.wall())


def tick(
    state: State, late_ms: int, has_worker: Callable[[str], bool], *, threaded: bool
) -> Report:
    """Has the jobs come in whose firing is on disk, and up to 256 schedulers fire whose time has
    come. Never waits for the disk where a thread writes; otherwise it writes."""
    schedules, storage = state.schedules, state.storage
    if not schedules.of_queue and not schedules.staged:
        return Report(0, None)
    if late_ms or state.wall() - state.now() != schedules.offset_ms:
        look_around(state, late_ms)
    done = publish(state) if schedules.staged else 0
    fired = fire_due(state, has_worker, BITE)
    if schedules.staged:
        if not threaded and storage is not None:
            storage.step()
        done += publish(state)
    now = state.now()
    due = now if fired == BITE else schedules.next_ms(now, state.wall())
    if schedules.staged and not schedules.asked:
        # writing fails: nobody will tell when it works again
        due = now + RETRY_MS if due is None else min(due, now + RETRY_MS)
    return _tuple(Report, (done + fired, due, schedules.late_ms))
