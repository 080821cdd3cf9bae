"""Waiting for a job's outcome, or for a queue to be empty. Register first, then look."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any

from ..errors import (
    JobFailedError,
    JobNotFoundError,
    ManagerClosedError,
    WaitTimeoutError,
)
from ..model.failure import Failure
from ..model.job import ACTIVE, COMPLETED, FAILED
from ..model.rows import RESULT_SIZE
from ..shard.queue_state import QueueState
from ..shard.shard import Watcher
from ..shard.waiters import Waiter
from ..state import State
from ..stores.alarm import NEVER
from . import archive
from .query import decode, decode_result, queue_of
from .recover import enter


def wait_for(state: State, job_id: str, timeout_ms: int | None) -> Any:
    """The result, once the job has completed.

    Raises `JobFailedError` when it has failed for good, `JobNotFoundError` for an unknown or
    removed job, `ResultExpiredError`, `WaitTimeoutError`, `ManagerClosedError`.
    """
    watcher = Watcher(Waiter())
    queue = _watch(state, job_id, watcher)
    if queue is None:
        return _outcome_of_past(state, job_id)
    try:
        if watcher.outcome is None:
            _sleep_until_resolved(state, watcher, job_id, timeout_ms)
        return _read(state, job_id, watcher)
    finally:
        if watcher.outcome is None:
            _unwatch(queue, job_id, watcher)


async def wait_for_async(state: State, job_id: str, timeout_ms: int | None = None) -> Any:
    """Like `wait_for`, for a coroutine; no thread is blocked. The time is the event loop's."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    watcher = Watcher(None, lambda: _set_in_loop(loop, done))
    queue = _watch(state, job_id, watcher)
    if queue is None:
        return _outcome_of_past(state, job_id)
    alarm = None if timeout_ms is None else loop.call_later(timeout_ms / 1000, done.set)
    try:
        if watcher.outcome is None:
            await done.wait()
        if watcher.outcome is None:
            raise WaitTimeoutError(f"job {job_id} did not finish within the time given")
        return _read(state, job_id, watcher)
    except GeneratorExit:
        # collected with its loop, as `pull_async` has it
        queue.shard.after.append(partial(_unwatch, queue, job_id, watcher))
        raise
    except BaseException:
        if watcher.outcome is None:
            _unwatch(queue, job_id, watcher)
        raise
    finally:
        if alarm is not None:
            alarm.cancel()


def _set_in_loop(loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> None:
    # a loop that was closed meanwhile has nobody left to wake
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(done.set)


def wait_until_empty(state: State, queue_name: str, timeout_ms: int | None) -> None:
    """Returns once nothing of the queue is pending or active; `WaitTimeoutError` otherwise."""
    queue = queue_of(state, queue_name)
    deadline = None if timeout_ms is None else state.now() + timeout_ms
    waiter = Waiter()
    try:
        while True:
            with queue.lock:
                if queue.shard.gate:
                    enter(state, queue.shard)
                if queue.is_idle:
                    return
                waiter.rearm()
                if waiter not in queue.empty_waiters:
                    queue.empty_waiters.append(waiter)
            _have_flushed(state)
            now = state.now()
            if deadline is not None and now >= deadline:
                raise WaitTimeoutError(
                    f"queue {queue_name!r} was not empty within the time given; "
                    "counts() says what is left"
                )
            state.clock.wait(waiter.lock, None if deadline is None else deadline - now)
    finally:
        with queue.lock:
            if waiter in queue.empty_waiters:
                queue.empty_waiters.remove(waiter)


def _watch(state: State, job_id: str, watcher: Watcher) -> QueueState | None:
    """Registers the watcher, or resolves it at once where the outcome is there already. `None`
    if there is no such job (any more)."""
    record = state.index.get(job_id)
    if record is None:
        return None
    queue: QueueState = record.queue
    active = False
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        if record.state == COMPLETED:
            data = state.results.get(job_id) if record.result_size >= 0 else None
            evicted = data is None and record.result_size >= 0
            watcher.resolve(queue.shard, "evicted" if evicted else "completed", data)
        elif record.state == FAILED:
            assert record.side is not None
            watcher.resolve(queue.shard, "failed", record.side.failure)
        elif state.index.get(job_id) is not record:
            return None
        else:
            active = record.state == ACTIVE
            queue.shard.watched.setdefault(job_id, []).append(watcher)
    if active:
        _have_flushed(state)
    return queue


def _have_flushed(state: State) -> None:
    """A worker may hold an outcome back for a batch: the pass of the beat that is planned is due
    now. Where none is planned nobody holds anything, and nobody might make it: a pass that is owed
    would be taken for a frozen process."""
    if state.beat.due_ms < NEVER:
        state.beat.set(state.now())


def _unwatch(queue: QueueState, job_id: str, watcher: Watcher) -> None:
    with queue.lock:
        watchers = queue.shard.watched.get(job_id)
        if watchers and watcher in watchers:
            watchers.remove(watcher)
            if not watchers:
                del queue.shard.watched[job_id]


def _sleep_until_resolved(
    state: State, watcher: Watcher, job_id: str, timeout_ms: int | None
) -> None:
    assert watcher.waiter is not None
    deadline = None if timeout_ms is None else state.now() + timeout_ms
    while watcher.outcome is None:
        left = None if deadline is None else deadline - state.now()
        if left is not None and left <= 0:
            raise WaitTimeoutError(f"job {job_id} did not finish within the time given")
        state.clock.wait(watcher.waiter.lock, left)


def _read(state: State, job_id: str, watcher: Watcher) -> Any:
    assert watcher.outcome is not None
    kind, value = watcher.outcome
    if kind == "completed":
        assert value is None or isinstance(value, bytes)
        return None if value is None else decode(state, value, f"the result of job {job_id}")
    if kind == "failed":
        assert isinstance(value, Failure)
        raise JobFailedError(job_id, str(value.reason), value.error, value.stack)
    if kind == "closed":
        raise ManagerClosedError(f"the manager was closed while job {job_id} was awaited")
    if kind == "evicted":
        return decode_result(state, job_id)
    raise JobNotFoundError(f"job {job_id} was removed while it was awaited", job_id=job_id)


def _outcome_of_past(state: State, job_id: str) -> Any:
    proof = state.proofs.get(job_id)
    if proof is None:
        row = archive.read(state, job_id)
        if row is not None:
            return decode_result(state, job_id) if row[RESULT_SIZE] >= 0 else None
        raise JobNotFoundError(
            f"there is no job {job_id!r}: it never existed or was removed", job_id=job_id
        )
    if proof.failure is not None:
        failure = proof.failure
        raise JobFailedError(job_id, str(failure.reason), failure.error, failure.stack)
    return decode_result(state, job_id) if proof.has_result else None
