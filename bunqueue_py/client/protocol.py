"""What every manager promises to the rest of the client, whatever it is made of.

It is over 400 lines because it is one list of promises, with a line or a few for each.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from typing_extensions import Unpack

from ..clock import Clock
from ..errors import StorageError
from ..model.cancel import Cancellation
from ..model.figures import MinuteCount
from ..model.flow_node import FlowNode, FlowPlan
from ..model.job_logs import LogPage
from ..model.mailbox import Inbox
from ..model.options import JobOptions, JobSpec
from ..model.schedule import Scheduler
from ..registry.workers import Card
from ..serializers import Serializer
from ..types import (
    DlqConfig,
    DlqStats,
    Duration,
    FailureReason,
    JobCounts,
    JobState,
    LimitStatus,
    Outcome,
    StallConfig,
)

if TYPE_CHECKING:
    from .job import DlqEntry, Job


_T = TypeVar("_T")


class WaitHandle(Protocol):
    """A waiting pull that another thread can end with `Backend.cancel_wait`."""

    cancelled: bool


class Hearing(Protocol):
    """What somebody hears of a queue's events; called, it hears no more."""

    def hear(self, types: frozenset[str] | None) -> None:
        """It hears these from now on (`None`: all)."""

    def __call__(self) -> None: ...


class Backend(Protocol):
    """What a worker needs beyond the public calls: times in milliseconds, results encoded."""

    @property
    def clock(self) -> Clock: ...

    @property
    def runs_threads(self) -> bool:
        """Whether background threads may be started."""
        ...

    @property
    def crew_class(self) -> type[Any] | None:
        """The kind of `Crew` that runs the jobs of its workers by hand, where no threads may;
        `None` for the usual one."""
        ...

    instrument: Callable[[Callable[[Job], Any]], Callable[[Job], Any]]
    """What is done to every handler before it serves."""

    child_instrument: str | None
    """The path of what is done to it in a process of a worker, if anything."""

    trace_carrier: Callable[[], str | None]
    """The context of the trace in which the caller is, as text, for those processes."""

    def check_open(self) -> None:
        """Raises `ManagerClosedError` if the manager is closed."""
        ...

    def worker_name(self) -> str:
        """A name for a worker that was given none, not used before."""
        ...

    def wait_handle(self) -> WaitHandle:
        """A handle for `claim`."""
        ...

    def claim(
        self, queue: str, limit: int, lease_ms: int, owner: str, handle: WaitHandle
    ) -> list[Job]:
        """Up to `limit` deliveries, the first of them started; blocks until there is one or the
        handle is cancelled (then possibly none)."""
        ...

    def claim_begun(
        self,
        queue: str,
        limit: int,
        timeout_ms: int | None,
        lease_ms: int,
        owner: str,
        handle: WaitHandle,
    ) -> list[Job]:
        """Up to `limit` deliveries, all of them started; blocks up to `timeout_ms` (`None`:
        without end) until there is one or the handle is cancelled."""
        ...

    def async_handle(self) -> WaitHandle:
        """A handle for `claim_async`, on the running event loop."""
        ...

    async def claim_async(
        self,
        queue: str,
        limit: int,
        lease_ms: int,
        owner: str,
        handle: WaitHandle,
        timeout_ms: int | None = None,
    ) -> list[Job]:
        """`claim_begun` for a coroutine."""
        ...

    def begin(self, job_id: str, token: str | None) -> bool:
        """Starts a claimed job, for each but the first of its batch; False if its delivery has
        ended."""
        ...

    def mark_begun(self, job_id: str, token: str | None) -> None:
        """Follows `begin` within some milliseconds for a job that has not ended by then: the
        storage is to know that it has begun."""
        ...

    def settle(
        self, items: Sequence[tuple[str, str | None, bytes | None]]
    ) -> tuple[list[Outcome], StorageError | None]:
        """Acks (id, token, encoded result) in one go, durable ones on disk; the error says why
        that is only done in memory so far."""
        ...

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
        """Fails a run; also says whether the job will run again. `work_done`: the handler had
        finished, only its result is at fault. `cause`: why, where no handler raised it. Raises
        `StorageError` with `accepted` where that was done, but the end of a durable job is not on
        disk yet."""
        ...

    def encode(self, result: Any) -> bytes:
        """The result as it will be kept; `SerializationError` if that cannot be."""
        ...

    def decode(self, data: bytes) -> Any:
        """What `encode` was given."""
        ...

    def park(self, job_id: str, token: str | None) -> bool:
        """Ends a run, uncharged, whose job waits for its children from now on; False if its
        delivery has ended."""
        ...

    def give_back(self, job_id: str, token: str | None) -> bool:
        """Releases a delivery whose handler has begun, uncharged, to its old place."""
        ...

    def release(self, job_id: str, token: str | None, delay_ms: int) -> bool:
        """Releases a delivery, uncharged: to its old place, or to wait that long."""
        ...

    def cool_down(self, queue: str, group: str | None, duration_ms: int) -> None:
        """Nothing of the group (`None`: of the queue) starts for that long."""
        ...

    def cancel(self, job_id: str, queue: str | None, why: str | None) -> bool:
        """Ends a running job (of that queue, if one is given) for good; False if it has
        finished."""
        ...

    def cancellation(self, job_id: str, token: str | None) -> Cancellation:
        """What the delivery of that token is told of its end."""
        ...

    def announce_closing(self, job_id: str, token: str | None) -> None:
        """Tells the handler of that delivery that its worker closes."""
        ...

    def give_back_unstarted(self, items: Sequence[tuple[str, str | None]]) -> None:
        """Releases (id, token) that were claimed and never begun, in one hold of the lock."""
        ...

    def renew(self, items: Sequence[tuple[str, str | None]]) -> list[bool]:
        """Heartbeats for (id, token)."""
        ...

    def cancel_wait(self, queue: str, handle: WaitHandle) -> None:
        """Ends a `claim` that waits, or the next one."""
        ...

    def others_wait(self, queue: str) -> bool:
        """Whether some thread waits for a job of that queue."""
        ...

    def watched(self, queue: str) -> Container[str]:
        """The ids of the jobs whose outcome somebody waits for, those of that queue among them;
        always as it is now, and looked at without a lock."""
        ...

    def contended(self, queue: str) -> Callable[[], bool]:
        """Says without blocking whether some thread is just changing that queue."""
        ...

    def bound_groups(self, queue: str, worker: object, bound: int | None) -> None:
        """The concurrency that a running worker asks for every group of the queue; `None` when
        it asks no longer."""
        ...

    def listen(self, inbox: Inbox, queue: str | None, types: frozenset[str] | None) -> Hearing:
        """Has every event of that queue and of those types (`None`: all) put into the inbox, as it
        was recorded; returns what changes or ends that. Raises `ManagerClosedError`."""
        ...

    def hear_empty(self, queue: str, fn: Callable[[], None]) -> Callable[[], None]:
        """Has `fn` called, under a lock, whenever the queue has run dry; returns what ends that."""
        ...

    def need_courier(self) -> None:
        """Has the thread run that makes the calls of `post`."""
        ...

    def post(self, fn: Callable[[], None]) -> None:
        """Has `fn` called soon, on a thread of the manager's; may be called under a lock."""
        ...

    @property
    def may_block(self) -> bool:
        """Whether a call may have to wait for a disk."""
        ...

    async def off_loop(self, fn: Callable[[], _T]) -> _T:
        """What `fn` returns, called on another thread."""
        ...

    @property
    def is_forked(self) -> bool:
        """Whether this process is a child of the one that opened the manager."""
        ...

    @property
    def is_inert(self) -> bool:
        """Whether the manager only stands for the one that the parent has, in a process of a
        worker."""
        ...

    @property
    def serializer(self) -> Serializer:
        """What payloads and results go through."""
        ...

    @property
    def max_data_bytes(self) -> int:
        """The bound on an encoded payload or result."""
        ...

    def extend(self, job_id: str, token: str | None, duration_ms: int) -> bool:
        """Holds a delivery for that long from now, and so at each heartbeat."""
        ...

    def attach(
        self,
        worker: Closable,
        tick: Callable[[], tuple[int, int | None]],
        queue: str,
        card: Card,
    ) -> None:
        """Has the manager close the worker when it closes, run its beat tick when due, and list
        it among those who work on that queue."""
        ...

    def detach(self, worker: Closable, *, give_back: bool = False) -> None:
        """Ends what `attach` began; `give_back`: nothing of the worker's runs any more, and what it
        still holds is pending again, uncharged."""
        ...

    def died(self, card: Card) -> None:
        """Everything that ran the jobs of that worker has ended, and nobody has closed it."""
        ...

    def beat_at(self, due_ms: int) -> None:
        """Has the beat thread run the ticks at that moment at the latest."""
        ...


class Closable(Protocol):
    """What a manager closes before itself."""

    def close(self, timeout: Duration | None = None, force: bool = False) -> bool: ...

    def _close_with_manager(self, timeout: float | None) -> bool:
        """`close`, by the manager; what was waited for in vain is not waited for again."""
        ...


class Manager(Protocol):
    """The calls that queues, jobs and parts make."""

    @property
    def backend(self) -> Backend: ...

    @property
    def now(self) -> datetime: ...

    def push(
        self, queue: str, data: Any = None, *, name: str = "default", **options: Unpack[JobOptions]
    ) -> Job: ...

    def push_batch(self, queue: str, specs: Iterable[JobSpec | tuple[str, Any]]) -> list[Job]: ...
    def extend_lock(
        self, job: Job | str, duration: Duration, *, token: str | None = None
    ) -> bool: ...
    def update_progress(
        self,
        job: Job | str,
        percent: float,
        message: str | None = None,
        *,
        token: str | None = None,
    ) -> None: ...
    def get_job(
        self,
        job_id: str | None = None,
        *,
        queue: str | None = None,
        custom_id: str | None = None,
    ) -> Job | None: ...
    def get_result(self, job_id: Job | str) -> Any: ...
    def wait_for(self, job_id: Job | str, timeout: Duration | None = None) -> Any: ...
    async def wait_for_async(self, job_id: Job | str, timeout: Duration | None = None) -> Any: ...

    decode: Callable[[bytes], Any]

    def add_log(
        self, job: Job | str, text: str, level: str = "info", *, token: str | None = None
    ) -> None: ...
    def job_logs(self, job_id: Job | str, offset: int = 0, limit: int = 100) -> LogPage: ...
    def minute_counts(self, queue: str, kind: str) -> list[MinuteCount]: ...
    def counts(self, queue: str | None = None) -> JobCounts: ...
    def get_jobs(
        self,
        queue: str,
        states: JobState | str | Iterable[JobState | str] | None = None,
        *,
        offset: int = 0,
        limit: int = 100,
        newest_first: bool = False,
        with_data: bool = True,
    ) -> list[Job]: ...
    def iter_jobs(
        self, queue: str, states: JobState | str | Iterable[JobState | str] | None = None
    ) -> Iterator[Job]: ...
    def counts_per_priority(self, queue: str) -> dict[int, int]: ...
    def pause(self, queue: str) -> None: ...
    def resume(self, queue: str) -> None: ...
    def is_paused(self, queue: str) -> bool: ...
    def drain(self, queue: str, delayed: bool = True) -> int: ...
    def obliterate(self, queue: str, force: bool = False) -> int: ...
    def remove(self, job: Job | str, queue: str | None = None) -> bool: ...
    def retry(self, job: Job | str, queue: str | None = None) -> bool: ...
    def clean(
        self, queue: str, older_than: Duration, *, state: JobState | str, limit: int = 1000
    ) -> list[str]: ...
    def retry_all(
        self, queue: str, state: JobState | str = JobState.FAILED, limit: int | None = None
    ) -> int: ...
    def promote(self, job: Job | str, queue: str | None = None) -> bool: ...
    def promote_all(self, queue: str, limit: int | None = None) -> int: ...
    def discard(self, job: Job | str, queue: str | None = None) -> bool: ...
    def update_data(
        self, job: Job | str, data: Any, queue: str | None = None, *, token: str | None = None
    ) -> bool: ...
    def change_priority(
        self,
        job: Job | str,
        priority: int,
        lifo: bool | None = None,
        queue: str | None = None,
    ) -> bool: ...
    def change_delay(self, job: Job | str, delay: Duration, queue: str | None = None) -> bool: ...
    def wait_until_empty(self, queue: str, timeout: Duration | None = None) -> None: ...
    def dlq_configure(
        self,
        queue: str,
        auto_retry: bool,
        retry_interval: Duration,
        max_retries: int,
        max_age: Duration | None,
        max_entries: int,
    ) -> None: ...
    def dlq_config(self, queue: str) -> DlqConfig: ...
    def dlq_entries(
        self,
        queue: str,
        reason: str | None = None,
        older_than: Duration | datetime | None = None,
        newer_than: Duration | datetime | None = None,
        retriable: bool | None = None,
        offset: int = 0,
        limit: int = 100,
    ) -> list[DlqEntry]: ...
    def dlq_stats(self, queue: str) -> DlqStats: ...
    def dlq_retry_all(
        self,
        queue: str,
        reason: str | None = None,
        older_than: Duration | datetime | None = None,
        newer_than: Duration | datetime | None = None,
        retriable: bool | None = None,
    ) -> int: ...
    def dlq_purge(
        self,
        queue: str,
        reason: str | None = None,
        older_than: Duration | datetime | None = None,
        newer_than: Duration | datetime | None = None,
        retriable: bool | None = None,
    ) -> int: ...
    def stalls_configure(
        self, queue: str, enabled: bool, interval: Duration, max_stalls: int, grace: Duration
    ) -> None: ...
    def stalls_config(self, queue: str) -> StallConfig: ...
    def dlq_len(self, queue: str) -> int: ...
    def dlq_retry(self, queue: str, job: Job | str) -> bool: ...
    def dlq_remove(self, queue: str, job: Job | str) -> bool: ...
    def deduplication_owner(self, queue: str, key: str) -> str | None: ...
    def deduplication_release(self, queue: str, key: str) -> bool: ...
    def known_queue(self, name: str) -> str: ...
    def set_concurrency(self, queue: str, bound: int | None, group: str | None = None) -> None: ...
    def set_rate_limit(
        self,
        queue: str,
        max: int,
        per: Duration,
        ttl: Duration | None = None,
        group: str | None = None,
    ) -> None: ...
    def clear_rate_limit(self, queue: str, group: str | None = None) -> None: ...
    def cool_down(self, queue: str, duration: Duration, group: str | None = None) -> None: ...
    def limit_status(self, queue: str) -> LimitStatus: ...
    def pause_group(self, queue: str, group: str, paused: bool) -> None: ...
    def group_view(self, queue: str, group: str) -> tuple[dict[int, int], int, bool]: ...
    def group_names(self, queue: str) -> list[str]: ...
    def scheduler_upsert(
        self,
        queue: Any,
        schedule_id: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str = "UTC",
        limit: int | None = None,
        immediately: bool = False,
        catch_up: bool = False,
        skip_if_no_worker: bool = False,
        prevent_overlap: bool = True,
        job: JobSpec | None = None,
    ) -> Scheduler: ...
    def scheduler_get(self, queue: Any, schedule_id: str) -> Scheduler | None: ...
    def scheduler_remove(self, queue: Any, schedule_id: str) -> bool: ...
    def scheduler_list(self, queue: Any = None) -> list[Scheduler]: ...
    def scheduler_preview(self, queue: Any, schedule_id: str, n: int) -> list[datetime]: ...
    def add_flows(self, plan: FlowPlan, *, chain: bool = False) -> list[Job]: ...
    def add_child(self, job: Job | str, node: FlowNode) -> Job: ...
    def children_values(
        self, job: Job | str, offset: int = 0, limit: int | None = None
    ) -> dict[str, Any]: ...
    def failed_children(self, job: Job | str) -> dict[str, str]: ...
    def ignored_failures(self, job: Job | str) -> dict[str, str]: ...
    def unprocessed_children(self, job: Job | str) -> list[str]: ...
    def remove_dependency(self, job: Job | str, other: Job | str) -> bool: ...
    def remove_unprocessed_children(self, job: Job | str) -> list[str]: ...
