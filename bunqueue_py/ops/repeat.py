"""Jobs that repeat: each success plans the next run, in one unit with its end."""

from __future__ import annotations

import logging

from ..errors import CronError, ValidationError
from ..model.claim import AnyClaim, Claim, is_held
from ..model.job import JobRecord
from ..model.options import Options, changed
from ..model.own import NAMED, Own
from ..shard.queue_state import QueueState
from ..state import State
from .admit import admit
from .finish import complete

_log = logging.getLogger("bunqueue_py.schedules")


def first_run(
    state: State, options: Options, own: Own | None, claim: AnyClaim
) -> tuple[Options, Own | None]:
    """The options and what is its own of a job with `repeat` that is about to come in. Raises
    `ValidationError`; for a key that outlives its job, too: no successor could take it."""
    plan = options.repeat
    assert plan is not None
    if is_held(claim):
        raise ValidationError(
            "repeat cannot go with hold='ttl': the next run would be a duplicate of the last"
        )
    now, wall = state.now(), state.wall()
    given = NAMED if own is None else own
    moment = wall + given.delay_ms if given.run_at_wall_ms is None else given.run_at_wall_ms
    if plan.start_ms is not None and moment < plan.start_ms:
        moment = plan.start_ms
        own = given._replace(delay_ms=0, run_at_wall_ms=moment)
    if plan.end_ms is not None and moment > plan.end_ms:
        raise ValidationError("repeat: end must not be before the first run")
    moment = max(moment, wall)
    planned = moment if plan.timing.by_wall else now + moment - wall
    return changed(options, repeat=plan._replace(run=1, planned_ms=planned)), own


def complete_and_repeat(
    state: State, queue: QueueState, record: JobRecord, data: bytes | None, now: int
) -> None:
    """`complete`, and the next run comes in, if there is one."""
    # before: what completes may leave at once, and takes its payload along
    found = _successor(state, queue, record, now)
    complete(state, queue, record, data, now)
    if found is not None:
        successor, own = found
        admit(state, queue, successor, own, now)
        if not state.alarm.served:
            queue.shard.after.append(state.alarm.start)


def _successor(
    state: State, queue: QueueState, record: JobRecord, now: int
) -> tuple[JobRecord, Own] | None:
    plan = record.options.repeat
    assert plan is not None
    if plan.limit is not None and plan.run >= plan.limit:
        return None
    wall = state.wall()
    try:
        moment = plan.timing.following(plan.planned_ms, wall if plan.timing.by_wall else now)
    except (CronError, ValidationError) as error:
        text = f"job {record.id} repeats no more: {error}"
        queue.shard.after.append(lambda: _log.error("%s", text))
        return None
    if moment is None:
        return None
    by_wall = plan.timing.by_wall
    if plan.end_ms is not None and (moment if by_wall else wall + moment - now) > plan.end_ms:
        return None
    options = changed(record.options, repeat=plan._replace(run=plan.run + 1, planned_ms=moment))
    successor = JobRecord(state.new_id(), queue, record.name, options, record.priority, record.data)
    successor.custom_id, successor.unique_key = record.custom_id, record.unique_key
    claim = record.claim
    successor.claim = Claim(claim.ttl_ms, claim.mode) if isinstance(claim, Claim) else claim
    side = record.side
    own = Own(
        0 if by_wall else moment - now,
        moment if by_wall else None,
        () if side is None else side.tags,
        None if side is None else side.group,
    )
    return successor, own
