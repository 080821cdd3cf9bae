"""Events, drawn under the lock of the shard that they are of."""

from __future__ import annotations

from typing import Any

from ..shard.queue_state import QueueState
from ..state import State


def emit(
    state: State,
    queue: QueueState,
    kind: str,
    job_id: str | None,
    now: int,
    carried: dict[str, Any] | None = None,
) -> None:
    """Draws the queue's next sequence number and hands the event to every listener that hears its
    type; where nobody does, nothing has happened. The caller has tested that there is a listener
    at all."""
    tell = state.events.heard.get(kind)
    if tell is not None:
        tell(queue, job_id, now, carried)
