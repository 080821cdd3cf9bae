"""What a call still owes the storage when it holds no lock any more. Nothing in memory."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import BulkAddError, BunqueueError, StorageError
from ..model.job import JobRecord
from ..model.own import Own
from ..model.snapshot import JobSnapshot
from ..state import State
from .recover import check_open


def refuse(state: State, *, durable: bool) -> None:
    """Raises `StorageError` if a push must not be accepted now. Before anything changes."""
    # whoever has closed the manager is not told of its disk
    check_open(state)
    if state.storage is not None:
        state.storage.refuse(durable=durable)


def keep_up(state: State) -> None:
    """Whoever has marked something waits here, holding no lock, while the writer is behind."""
    if state.storage is not None:
        state.storage.admit()


def first_durable(
    jobs: Sequence[JobSnapshot], drafts: Sequence[tuple[JobRecord, Own | None]]
) -> str | None:
    """The id of the first of the jobs whose draft asked to be durable; `None` if none did."""
    for job, (record, _) in zip(jobs, drafts, strict=False):
        if record.options.durable:
            return job._id
    return None


def cut_short(
    refused: BunqueueError,
    jobs: Sequence[JobSnapshot],
    problem: StorageError | None,
    index: int,
) -> BulkAddError:
    """The error of a batch that ended at the job of that index, which was refused, and whose jobs
    before that could not be committed yet if there is a problem."""
    text = f"jobs[{index}]: {refused}. The {len(jobs)} before it were added (accepted)"
    if problem is not None:
        text += f", and: {problem}"
    return BulkAddError(text, accepted=jobs, index=index)


def outcome_cut(state: State, record: JobRecord) -> int:
    """The cut that whoever has just ended this job is to wait for; 0 if for none. Called under the
    shard's lock, after the mark."""
    storage = state.storage
    return storage.cut if storage is not None and record.options.durable else 0


def settle(state: State, cut: int, job_id: str | None) -> None:
    """Waits for that cut, if it is one, else only keeps up. Raises `StorageError` with `accepted`
    if the commit fails."""
    storage = state.storage
    if storage is not None:
        if cut:
            storage.wait_committed(cut, job_id)
        else:
            storage.admit()
