"""Whether a finished job may run again."""

from __future__ import annotations

from ..errors import JobStateError
from ..model.job import ACTIVE, JobRecord
from ..shard.queue_state import QueueState


def refusal_of_retry(queue: QueueState, record: JobRecord) -> str | None:
    """Why a finished job cannot be retried now, in words that follow "because"; `None` if it can.

    Its shard is held. Whatever a live job may have taken from a finished one is asked for here.
    """
    if record.custom_id is not None:
        holder = queue.custom_ids.get(record.custom_id)
        if holder is not None and holder is not record and holder.state <= ACTIVE:
            return f"its custom id {record.custom_id!r} now belongs to live job {holder.id}"
    return None


def retry_refused(record: JobRecord, why: str) -> JobStateError:
    """The error of a retry that `refusal_of_retry` refuses."""
    return JobStateError(
        f"job {record.id} cannot be retried, because {why}; wait until that has finished, or "
        "remove it",
        job_id=record.id,
    )
