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
    type. The caller has tested that there is a listener at all."""
    events = state.events
    queue.event_seq = number = queue.event_seq + 1
    if kind not in events.kinds:
        return
    name = queue.name
    event = (kind, name, job_id, now, number, carried)
    # what `publish` does, in line
    for of, types, mailbox in events.entries:
        if (types is None or kind in types) and (of is None or of == name) and mailbox.offer(event):
            events.losing = True
    if events.losing:
        # a listener that never returns cannot say it itself; logging is foreign code
        events.losing = False
        queue.shard.after.append(events.report)
