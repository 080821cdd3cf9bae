"""`State`: every noun of one manager, wired together. No methods: the verbs are in `ops`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from .clock import Clock
from .config import ManagerConfig, Periods
from .ids import Ids
from .model.job import JobRecord
from .model.options import OptionsCache
from .model.snapshot import JobSnapshot, fields_of
from .registry.schedules import Schedules
from .registry.task_errors import TaskErrors
from .registry.webhooks import WebhookRegistry
from .registry.workers import WorkerRegistry
from .shard.queue_state import QueueState
from .shard.shard_map import ShardMap
from .storage.base import Storage
from .stores.alarm import Alarm
from .stores.dependencies import Dependencies
from .stores.duty import Duty
from .stores.logs import LogStore
from .stores.results import ProofStore, ResultStore
from .stores.subscriptions import Subscriptions
from .stores.timings import Timings
from .sync import RECALL, AnyLock, make_lock
from .types import JobState


class _Referred:
    """Weak references to a class with slots need a slot of their own."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, slots=True)
class State(_Referred):
    """What one manager holds.

    `index` maps a job id to its record and is written under the owning shard's lock; `queues`
    maps a name to its queue. `alarm` is the scheduler's, `beat` the workers'. The bounds
    on completed jobs are looked at when a shard's completions hit `trim_mask`, or its bytes pass
    `trim_bytes`. `snapshot` reads a record, `view` takes what was read: it makes a `view_type` for
    `manager`, which is opaque here. `now`, `new_id` and their like are bound here once for the hot
    path. `recalling` is held by whoever brings back a job that only the file has. `cleanup`,
    `staff` and `counting` are when the clean-up, the look at the workers and the marks of what was
    counted are due, `workers` who works here, `errors` what the background tasks have come to,
    `periods` the durations of the config, `timings` how long calls take, or `None` where that is
    not measured.
    """

    config: ManagerConfig
    clock: Clock
    ids: Ids
    now: Callable[[], int]
    wall: Callable[[], int]
    new_id: Callable[[], str]
    new_token: Callable[[], str]
    dumps: Callable[[Any], bytes]
    loads: Callable[[bytes], Any]
    view: Callable[..., JobSnapshot]
    view_type: type[JobSnapshot]
    manager: Any
    snapshot: Callable[..., JobSnapshot]
    options: OptionsCache
    index: dict[str, JobRecord]
    queues: dict[str, QueueState]
    shards: ShardMap
    results: ResultStore
    proofs: ProofStore
    logs: LogStore
    webhooks: WebhookRegistry
    dependencies: Dependencies
    events: Subscriptions
    alarm: Alarm
    beat: Alarm
    max_data_bytes: int
    trim_mask: int
    trim_bytes: int
    storage: Storage | None
    recalling: AnyLock
    periods: Periods
    cleanup: Duty
    staff: Duty
    workers: WorkerRegistry
    errors: TaskErrors
    schedules: Schedules
    timings: Timings | None
    counting: Duty


def build_state(
    config: ManagerConfig,
    clock: Clock,
    ids: Ids,
    view_type: type[JobSnapshot],
    manager: Any,
    storage: Storage | None = None,
) -> State:
    """A fresh, empty state. `view_type` is what users hold of a job, and `manager` what stands
    behind that. `storage` is where it survives; `None`: nowhere."""
    view = partial(view_type.of, manager)

    def snapshot(record: JobRecord, job_state: JobState, duplicate: bool = False) -> JobSnapshot:
        delivery = record.delivery
        token = None if delivery is None else delivery.token
        return view(record.id, token, fields_of(record, job_state), duplicate)

    alarm, periods = Alarm(), config.periods()
    return State(
        config=config,
        clock=clock,
        ids=ids,
        now=clock.timeline_ms,
        wall=clock.wall_ms,
        new_id=ids.job_id,
        new_token=ids.token,
        dumps=config.serializer.dumps,
        loads=config.serializer.loads,
        view=view,
        view_type=view_type,
        manager=manager,
        snapshot=snapshot,
        options=OptionsCache(
            config.max_timeline, persistent=storage is not None and storage.persistent
        ),
        index={},
        queues={},
        shards=ShardMap(
            config.shard_count(), periods.stall_check_interval, measured=config.measure_times
        ),
        results=ResultStore(config.keep_results, config.max_completed_bytes),
        proofs=ProofStore(),
        logs=LogStore(config.keep_logs_jobs),
        webhooks=WebhookRegistry(),
        dependencies=Dependencies(),
        events=Subscriptions(),
        alarm=alarm,
        beat=Alarm(),
        max_data_bytes=config.max_data_bytes,
        trim_mask=0 if config.keep_completed is not None and config.keep_completed < 4096 else 63,
        trim_bytes=config.max_completed_bytes // config.shard_count(),
        storage=storage,
        recalling=make_lock("recalling", RECALL),
        periods=periods,
        cleanup=Duty(alarm),
        staff=Duty(alarm),
        workers=WorkerRegistry(),
        errors=TaskErrors(config.circuit_failures),
        schedules=Schedules(clock.wall_ms() - clock.timeline_ms()),
        timings=Timings(clock.elapsed_ns) if config.measure_times else None,
        counting=Duty(alarm),
    )
