"""When a delivery without a lock must be looked at. Guarded.

Such a delivery has one deadline of kind STALL, at `armed_ms`. A heartbeat only notes the moment;
the deadline moves on when it comes due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model.job import Delivery
from ..model.settings import StallSettings
from .deadlines import STALL, Deadlines

if TYPE_CHECKING:
    from .shard import Shard

CONFIRM_MS = 5_000
"""So long a suspect may still speak up, unless the config says otherwise."""


def due_of(delivery: Delivery, settings: StallSettings) -> int:
    """The moment at which the delivery becomes suspected, or, being that, lost, unless a
    heartbeat comes before."""
    if delivery.suspected_ms is not None:
        shard: Shard = delivery.record.queue.shard
        return delivery.suspected_ms + shard.confirm_ms
    record = delivery.record
    own = record.options.stall_timeout_ms
    silent = delivery.beat_ms + (settings.interval_ms if own is None else own)
    started = record.started_ms
    return silent if started is None else max(silent, started + settings.grace_ms)


def watch(deadlines: Deadlines, delivery: Delivery, settings: StallSettings) -> int | None:
    """Has a delivery without a lock looked at from now on, in place of any moment before, or no
    longer, as the settings say; returns when."""
    if delivery.armed_ms is not None:
        delivery.armed_ms = None
        deadlines.drop()
    if not settings.enabled:
        delivery.suspected_ms = None
        return None
    due = delivery.armed_ms = due_of(delivery, settings)
    deadlines.push(due, STALL, delivery)
    return due


def check_watched(delivery: Delivery, settings: StallSettings) -> None:
    """Asserts that a delivery is watched as the settings say."""
    if delivery.expires_ms is None:
        assert (delivery.armed_ms is not None) is settings.enabled, "watched against the settings"
        assert settings.enabled or delivery.suspected_ms is None, "suspected, but not watched"
    else:
        assert delivery.armed_ms is not None, "a lock that nobody watches"
