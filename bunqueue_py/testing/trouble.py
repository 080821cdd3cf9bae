"""What the harness does to a job that the engine would never do by itself."""

from __future__ import annotations

from ..errors import JobNotFoundError, JobStateError
from ..ops.recover import enter
from ..shard.deadlines import LEASE
from ..shard.shard import BROKEN, OPEN
from . import hints
from .stage import Stage


def expire_lock(stage: Stage, job_id: str) -> None:
    """Has the lock of an active job run out now, and judged as every lost run is."""
    state = stage.state
    record = state.index.get(job_id)
    if record is None:
        raise JobNotFoundError(f"there is no job {job_id!r}", job_id=job_id)
    queue = record.queue
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        delivery = record.delivery
        if delivery is not None and delivery.lease_ms is not None:
            now = state.now()
            shard.gate = BROKEN
            if delivery.armed_ms is not None:
                shard.deadlines.drop()
            delivery.expires_ms = delivery.armed_ms = now
            shard.deadlines.push(now, LEASE, delivery)
            shard.gate = OPEN
    if delivery is None:
        raise JobStateError(
            f"{hints.named(stage, job_id)} {hints.state_of(stage, job_id)}: only an active job has "
            "a lock. pull() it, or let its handler return hang(), or call this from within",
            job_id=job_id,
        )
    if delivery.lease_ms is None:
        raise JobStateError(
            f"{hints.named(stage, job_id)} was pulled without a lock: advance() past its stall "
            "timeout instead",
            job_id=job_id,
        )
    # before the beat, which would renew it
    stage.sweep()
    stage.duties()
