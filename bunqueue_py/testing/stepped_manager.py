"""The manager that a harness has: without threads, and able to die and start again in place."""

from __future__ import annotations

import atexit
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..client.job import Job
from ..config import ManagerConfig
from ..errors import BunqueueError
from ..manager import QueueManager
from ..model.flow_node import FlowNode, FlowPlan
from ..model.schedule import Scheduler
from ..shard.shard import CLOSED
from ..state import State
from ..storage.base import Storage
from ..storage.sqlite.storage import SqliteStorage
from ..types import Duration, JobState
from .clock import VirtualClock
from .coroutines import Loops
from .ids import SeededIds
from .stepping import CannotEnd, Recorder, SteppedBackend

if TYPE_CHECKING:
    from .stage import Stage

CONFIG = ManagerConfig(shards=1)
"""One shard, so that the order of things does not depend on the machine's number of CPUs."""

_ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.UNKNOWN)


class SteppedManager(QueueManager):
    """A manager without threads that can be started again in place: queues and jobs made before
    go on with what the storage has kept."""

    _state: State
    _backend: SteppedBackend
    _calls_handlers = __package__

    def __init__(self, stage: Stage, storage: Any, clock: VirtualClock, ids: SeededIds) -> None:
        self._stage = stage
        self._clock, self._ids = clock, ids
        self._loops = Loops()
        self._boot(storage)

    def _boot(self, storage: Any) -> None:
        QueueManager.__init__(
            self, storage, config=CONFIG, clock=self._clock, background=False, _ids=self._ids
        )
        if isinstance(self.kept, SqliteStorage):
            self.kept._trust_the_system()
        self._state.alarm.sleeps = self._state.beat.sleeps = False
        self._backend = SteppedBackend(self._state, self._beat, self._stage)
        self._state.events.add(Recorder(self._stage.history.recent), None, None)

    @property
    def kept(self) -> Storage | None:
        """The storage; `None` is memory."""
        return self._state.storage

    def crash(self) -> None:
        """The process dies and comes back: memory is dropped, the storage opened again."""
        storage = self._state.storage
        atexit.unregister(self._at_exit)
        if storage is not None:
            # the writer is never behind here, whatever time it is
            storage.step()
        for shard in self._state.shards.shards:
            shard.gate = CLOSED
        if storage is not None:
            storage._abandon()  # type: ignore[attr-defined]
        self._boot(storage)

    # -- what may block, or adds --------------------------------------------------------------

    def push(self, queue: Any, data: Any = None, **options: Any) -> Job:
        """See `QueueManager.push`."""
        job = super().push(queue, data, **options)
        self._stage.added([job])
        return job

    def push_batch(self, queue: Any, specs: Iterable[Any]) -> list[Job]:
        """See `QueueManager.push_batch`."""
        try:
            jobs = super().push_batch(queue, specs)
        except BunqueueError as error:
            self._stage.added(getattr(error, "accepted", ()))
            raise
        self._stage.added(jobs)
        return jobs

    def add_flows(self, plan: FlowPlan, *, chain: bool = False) -> list[Job]:
        """See `QueueManager.add_flows`."""
        jobs = super().add_flows(plan, chain=chain)
        self._stage.added(jobs)
        return jobs

    def add_child(self, job: Job | str, node: FlowNode) -> Job:
        """See `QueueManager.add_child`."""
        child = super().add_child(job, node)
        self._stage.added([child])
        return child

    def scheduler_upsert(self, queue: Any, schedule_id: str, **options: Any) -> Scheduler:
        """See `QueueManager.scheduler_upsert`."""
        super().scheduler_upsert(queue, schedule_id, **options)
        # it may add a job at once
        self._stage.added(())
        found = self.scheduler_get(queue, schedule_id)
        assert found is not None
        return found

    def pull(self, queue: Any, timeout: Duration | None = 0, **options: Any) -> Job | None:
        """See `QueueManager.pull`."""
        try:
            return super().pull(queue, timeout, **options)
        except CannotEnd:
            raise self._stage.no_job(getattr(queue, "name", queue)) from None

    def pull_batch(
        self, queue: Any, max_jobs: int, timeout: Duration | None = 0, **options: Any
    ) -> list[Job]:
        """See `QueueManager.pull_batch`."""
        try:
            return super().pull_batch(queue, max_jobs, timeout, **options)
        except CannotEnd:
            raise self._stage.no_job(getattr(queue, "name", queue)) from None

    def wait_for(self, job_id: Job | str, timeout: Duration | None = None) -> Any:
        """See `QueueManager.wait_for`."""
        try:
            return super().wait_for(job_id, timeout)
        except CannotEnd:
            raise self._stage.no_outcome(_id_of(job_id)) from None

    async def wait_for_async(self, job_id: Job | str, timeout: Duration | None = None) -> Any:
        """See `QueueManager.wait_for_async`. In a handler, jobs that others have a free slot for
        run meanwhile. Raises where no other task of the event loop could ever run the job."""

        def ended() -> bool:
            return self.get_state(job_id) in _ENDED

        if not ended():
            self._stage.help_out(ended)
        waits = super().wait_for_async(job_id, timeout)
        return await self._loops.waited(
            waits, None if ended() else lambda: self._stage.no_outcome(_id_of(job_id))
        )

    def wait_until_empty(self, queue: Any, timeout: Duration | None = None) -> None:
        """See `QueueManager.wait_until_empty`."""
        try:
            super().wait_until_empty(queue, timeout)
        except CannotEnd:
            raise self._stage.not_empty(getattr(queue, "name", queue)) from None


def _id_of(job: Job | str) -> str:
    return job.id if isinstance(job, Job) else job
