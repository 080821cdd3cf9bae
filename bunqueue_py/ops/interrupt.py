"""Telling a handler that its run is over, or soon to be."""

from __future__ import annotations

from ..model.cancel import CANCELLED, LOCK_LOST, STALLED, TIMEOUT, Holder
from ..model.failure import Failure
from ..model.job import Delivery
from ..shard.shard import Shard
from ..types import FailureReason

_REASONS = {
    FailureReason.CANCELLED: CANCELLED,
    FailureReason.TIMEOUT: TIMEOUT,
    FailureReason.STALLED: STALLED,
}


def reason_of(failure: Failure) -> str:
    """What a handler is told of a run that ended so."""
    return _REASONS.get(failure.reason, LOCK_LOST)


def interrupt(shard: Shard, delivery: Delivery | None, reason: str) -> None:
    """The delivery has ended, and not by its handler's return: whoever runs it is told. The shard
    is held."""
    if delivery is None:
        return
    cancellation = getattr(delivery, "cancellation", None)
    if cancellation is not None:
        cancellation.set(LOCK_LOST if reason == STALLED else reason)
    owner = delivery.owner
    if owner.__class__ is Holder:
        after = owner.told(delivery.record.id, delivery.token, reason)
        if after is not None:
            shard.after.append(after)
