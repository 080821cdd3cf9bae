"""Webhooks that are to survive a restart: their rows are marked in the first shard."""

from __future__ import annotations

from ..shard.shard import BROKEN, OPEN
from ..state import State
from .commit import keep_up
from .recover import check_open, enter

WEBHOOK_KIND = "webhook"


def mark_hook(state: State, hook_id: str) -> None:
    """The webhook is as it is now, or gone. Called with nothing held; the row is read under the
    shard's lock, so the last mark is the last change."""
    shard = state.shards.shards[0]
    with shard.lock:
        if shard.gate:
            enter(state, shard)
        if shard.dirty is None:
            return
        shard.gate = BROKEN
        shard.dirty.keep(WEBHOOK_KIND, hook_id, state.webhooks.body(hook_id))
        shard.gate = OPEN
    keep_up(state)


def refuse_closed(state: State) -> None:
    """Raises `ManagerClosedError` if the manager is closed."""
    check_open(state)
