"""After an unclean end: that a recovered job has started is on disk before its handler runs, so
that one that kills its process at once is charged each time, and does not loop for ever."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import StorageError
from ..model.job import JobRecord
from ..model.snapshot import JobSnapshot
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from .give_back import give_back
from .recover import enter

CAREFUL_MS = 60_000
"""For how long: a process that has lived until then was not killed by what it runs first."""


def hand_over(state: State, queue: QueueState, views: Sequence[JobSnapshot]) -> None:
    """Called without a lock before deliveries go to whoever pulled them, where there is a storage.
    Raises `StorageError` if they must not, since the disk fails; they are then given back."""
    shard, storage = queue.shard, state.storage
    assert storage is not None
    until = shard.careful_ms
    if until:
        if state.now() >= until:
            shard.careful_ms = 0
        elif any(view._created_ms <= until - CAREFUL_MS for view in views):
            try:
                storage.wait_committed(storage.cut)
            except BaseException as error:
                _take_back(state, queue, views)
                if isinstance(error, StorageError):
                    raise StorageError(
                        "a job that was recovered after a crash is not handed out before that is "
                        f"on disk, for the first {CAREFUL_MS // 1000} s: {error.__cause__ or error}"
                    ) from error
                raise
            return
    storage.admit()


def _take_back(state: State, queue: QueueState, views: Sequence[JobSnapshot]) -> None:
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        for view in views:
            record = state.index.get(view._id)
            if record is None or record.delivery is None or record.delivery.token != view.token:
                continue
            shard.gate = BROKEN
            give_back(state, queue, record, now, 0, started=False)
            shard.gate = OPEN
    shard.call_after()


def is_alone(record: JobRecord, careful_ms: int) -> bool:
    """Whether the job must not wait in a batch: its time would run while it is not begun, or its
    start must be on disk before its handler runs."""
    options = record.options
    return (
        options.timeout_ms is not None
        or (options.ttl_ms is not None and record.started_ms is None)
        or record.created_ms <= careful_ms - CAREFUL_MS
    )
