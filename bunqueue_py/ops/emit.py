"""Events, drawn under the lock of the shard that they are of."""

from __future__ import annotations

from typing import Any

from ..model.events import RawEvent
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
    events = state.events
    route = events.heard.get(kind)
    if route is None:
        return
    queue.event_seq = number = queue.event_seq + 1
    event: RawEvent = (kind, queue.name, job_id, now, number, carried)
    if route.keep is not None:
        route.keep(event)
        return
    box = route.box
    if box is not None and len(box.items) < box.easy:
        # what its `offer` does, in line: the way of nearly every event with but one listener
        box.items.append(event)
        if not box.awake:
            box.ring()
        return
    if events.quiet:
        events.stir(now)
    for of, offer in route.ears:
        if (of is None or of == queue.name) and offer(event):
            events.losing = True
    if events.losing:
        # a listener that never returns cannot say it itself; logging is foreign code
        events.losing = False
        queue.shard.after.append(events.report)
