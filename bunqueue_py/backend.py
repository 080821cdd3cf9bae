"""What the engine gives to workers: one-line delegations to the verbs."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Container, Sequence
from functools import partial
from itertools import count
from typing import Any, TypeVar

from .client.job import Job
from .client.protocol import Closable, WaitHandle
from .clock import Clock
from .errors import ManagerClosedError, StorageError
from .model.cancel import Cancellation
from .model.failure import describe
from .model.mailbox import Inbox, Mailbox, Tap
from .offload import Offload
from .ops import (
    ack,
    begin,
    cancel,
    fail,
    leases,
    limits,
    owners,
    park,
    pull,
    pull_waits,
    push,
    recover,
    staff,
)
from .ops.pull_async import pull_async
from .registry.workers import Card, WorkerEntry
from .serializers import Serializer
from .shard.loop_waiter import LoopWaiter
from .shard.shard import FORKED, INERT
from .shard.waiters import Waiter
from .state import State
from .stores.subscriptions import Subscription
from .sync import LEAF, contention, make_lock
from .tasks import workers
from .tasks.scheduler import Pace, Report, Task, TaskLoop
from .types import ANY, FailureReason, GroupChoice, Outcome

_T = TypeVar("_T")

HOST = socket.gethostname()


class EngineBackend:
    """The `Backend` of `QueueManager`."""

    crew_class: type[Any] | None = None

    def __init__(self, state: State, beat: TaskLoop, *, runs_threads: bool) -> None:
        self._state = state
        self._beat = beat
        self._attached: dict[int, tuple[Closable, Task, WorkerEntry]] = {}
        self._numbers = count(1)
        self._ids = count(1)
        #: calls event loops on behalf of whoever holds a lock
        self._courier = Mailbox("courier", lambda call: call(), state.clock.timeline_ms)
        self._courier_runs = False
        self._starting = make_lock("courier's start", LEAF)
        self._offload = Offload()
        self.clock: Clock = state.clock
        self.runs_threads = runs_threads
        #: what is done to every handler before it serves; tracing sets it
        self.instrument: Callable[[Callable[[Job], Any]], Callable[[Job], Any]] = _as_it_is
        self.child_instrument: str | None = None
        self.trace_carrier: Callable[[], str | None] = _no_trace
        #: how a beat that fails is tried again
        self.pace = Pace()
        self.begin: Callable[[str, str | None], bool] = partial(begin.begin, state)

    def check_open(self) -> None:
        recover.check_open(self._state)

    def worker_name(self) -> str:
        return f"worker-{next(self._numbers)}"

    def wait_handle(self) -> WaitHandle:
        return Waiter()

    def claim(
        self, queue: str, limit: int, lease_ms: int, owner: str, handle: WaitHandle
    ) -> list[Job]:
        assert isinstance(handle, Waiter)
        return pull.pull(  # type: ignore[return-value]
            self._state, queue, limit, None, lease_ms, owner, handle, claim=True
        )

    def claim_begun(
        self,
        queue: str,
        limit: int,
        timeout_ms: int | None,
        lease_ms: int,
        owner: str,
        handle: WaitHandle,
    ) -> list[Job]:
        assert isinstance(handle, Waiter)
        return pull.pull(  # type: ignore[return-value]
            self._state, queue, limit, timeout_ms, lease_ms, owner, handle
        )

    def async_handle(self, group: GroupChoice = ANY) -> LoopWaiter:
        self.need_courier()
        return LoopWaiter(self.post, group)

    def need_courier(self) -> None:
        with self._starting:
            if not self._courier_runs and self.runs_threads:
                self._courier_runs = True
                self._courier.start()

    async def claim_async(
        self,
        queue: str,
        limit: int,
        lease_ms: int,
        owner: str,
        handle: WaitHandle,
        timeout_ms: int | None = None,
    ) -> list[Job]:
        assert isinstance(handle, LoopWaiter)
        return await pull_async(  # type: ignore[return-value]
            self._state, queue, limit, timeout_ms, lease_ms, owner, handle, self.off_loop
        )

    def mark_begun(self, job_id: str, token: str | None) -> None:
        begin.mark_begun(self._state, job_id, token)

    def settle(
        self, items: Sequence[tuple[str, str | None, bytes | None]]
    ) -> tuple[list[Outcome], StorageError | None]:
        return ack.ack_batch(self._state, items)

    def fail_run(
        self,
        job_id: str,
        token: str | None,
        error: BaseException | str,
        *,
        unrecoverable: bool,
        work_done: bool = False,
        cause: FailureReason | None = None,
    ) -> tuple[Outcome, bool]:
        text, stack = describe(error)
        return fail.fail(
            self._state,
            job_id,
            token,
            text,
            stack,
            error,
            unrecoverable=unrecoverable,
            work_done=work_done,
            cause=cause or FailureReason.UNKNOWN,
        )

    def encode(self, result: Any) -> bytes:
        return push.encode(self._state, result, "the result")

    def decode(self, data: bytes) -> Any:
        return self._state.loads(data)

    def park(self, job_id: str, token: str | None) -> bool:
        return park.park(self._state, job_id, token)

    def give_back(self, job_id: str, token: str | None) -> bool:
        return leases.release(self._state, job_id, token, 0)

    def release(self, job_id: str, token: str | None, delay_ms: int) -> bool:
        return leases.release(self._state, job_id, token, delay_ms)

    def cool_down(self, queue: str, group: str | None, duration_ms: int) -> None:
        limits.cool_down(self._state, queue, group, duration_ms)

    def cancel(self, job_id: str, queue: str | None, why: str | None) -> bool:
        return cancel.cancel(self._state, job_id, queue, why)

    def cancellation(self, job_id: str, token: str | None) -> Cancellation:
        return cancel.cancellation_of(self._state, job_id, token)

    def announce_closing(self, job_id: str, token: str | None) -> None:
        cancel.announce_closing(self._state, job_id, token)

    def give_back_unstarted(self, items: Sequence[tuple[str, str | None]]) -> None:
        leases.release_unstarted(self._state, items)

    def renew(self, items: Sequence[tuple[str, str | None]]) -> list[bool]:
        return leases.renew_batch(self._state, items)

    def cancel_wait(self, queue: str, handle: WaitHandle) -> None:
        assert isinstance(handle, Waiter)
        pull_waits.cancel(self._state, queue, handle)

    def others_wait(self, queue: str) -> bool:
        return pull_waits.others_wait(self._state, queue)

    def watched(self, queue: str) -> Container[str]:
        return self._state.shards.of(queue).watched

    def contended(self, queue: str) -> Callable[[], bool]:
        return contention(self._state.shards.of(queue).lock)

    def bound_groups(self, queue: str, worker: object, bound: int | None) -> None:
        limits.set_default(self._state, queue, worker, bound)

    def listen(self, inbox: Inbox, queue: str | None, types: frozenset[str] | None) -> Subscription:
        recover.check_open(self._state)
        subscription = self._state.events.add(inbox, queue, types)
        if subscription is None:
            raise ManagerClosedError("this manager is closed; open a new QueueManager")
        return subscription

    def hear_empty(self, queue: str, fn: Callable[[], None]) -> Callable[[], None]:
        return self.listen(Tap(lambda event: fn()), queue, frozenset(("empty",)))

    def post(self, fn: Callable[[], None]) -> None:
        self._courier.offer(fn)

    @property
    def may_block(self) -> bool:
        return self._state.storage is not None and self.runs_threads

    async def off_loop(self, fn: Callable[[], _T]) -> _T:
        return await self._offload(fn)

    @property
    def is_forked(self) -> bool:
        return self._state.shards.shards[0].gate == FORKED

    @property
    def place(self) -> str:
        """What the ids of its workers begin with."""
        return f"{HOST}:{os.getpid()}"

    @property
    def is_inert(self) -> bool:
        return self._state.shards.shards[0].gate == INERT

    @property
    def serializer(self) -> Serializer:
        return self._state.config.serializer

    @property
    def max_data_bytes(self) -> int:
        return self._state.max_data_bytes

    def extend(self, job_id: str, token: str | None, duration_ms: int) -> bool:
        return leases.renew(self._state, job_id, token, duration_ms)

    def close(self, timeout: float | None) -> bool:
        """Ends its threads, of which there are none but for event loops."""
        ended = self._offload.close(timeout)
        return self._courier.close(timeout) and ended

    def attach(
        self,
        worker: Closable,
        tick: Callable[[], tuple[int, int | None]],
        queue: str,
        card: Card,
    ) -> None:
        state = self._state
        entry = WorkerEntry(
            f"{self.place}:{next(self._ids)}", queue, card, HOST, os.getpid(), state.now()
        )
        task = Task(
            f"beat of {entry.id}", lambda: Report(*tick()), errors=state.errors, pace=self.pace
        )
        self._attached[id(worker)] = (worker, task, entry)
        self._beat.add(task)
        staff.join(state, entry)
        self._beat.start()

    def detach(self, worker: Closable, *, give_back: bool = False) -> None:
        attached = self._attached.pop(id(worker), None)
        if attached is not None:
            _, task, entry = attached
            self._beat.remove(task)
            staff.leave(self._state, entry, "closed")
            if give_back:
                owners.release_lost(self._state, entry)

    def died(self, card: Card) -> None:
        for _, _, entry in list(self._attached.values()):
            if entry.card is card:
                workers.died(self._state, entry)
                owners.release_lost(self._state, entry)

    def beat_at(self, due_ms: int) -> None:
        if due_ms < self._state.beat.due_ms:
            self._state.beat.set(due_ms)

    def has_worker(self, queue: str) -> bool:
        """Whether a worker of the queue runs, or somebody waits in a pull."""
        entries = self._state.workers.entries()
        return any(entry.queue == queue for entry in entries) or self.others_wait(queue)

    def attached(self) -> list[Closable]:
        """The workers that are to be closed before the manager."""
        return [worker for worker, _, _ in list(self._attached.values())]


def _as_it_is(handler: Callable[[Job], Any]) -> Callable[[Job], Any]:
    return handler


def _no_trace() -> None:
    """Where nobody traces."""
