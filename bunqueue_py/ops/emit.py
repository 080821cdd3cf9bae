"""Events, drawn under the lock of the shard that they are of."""

from __future__ import annotations

from typing import Any

from ..model.events import RawEvent
from ..shard.queue_state import QueueState
from ..state import State
from ..stores.subscriptions import Route


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
    route = state.events.heard.get(kind)
    if route is not None:
        queue.event_seq = number = queue.event_seq + 1
        hand_out(state, queue, route, (kind, queue.name, job_id, now, number, carried))


def hand_out(state: State, queue: QueueState, route: Route, event: RawEvent) -> None:
    """Gives a numbered event to who hears it."""
    events, name = state.events, event[1]
    if events.quiet:
        events.stir(event[3])
    for of, offer in route.ears:
        if (of is None or of == name) and offer(event):
            events.losing = True
    if events.losing:
        # a listener that never returns cannot say it itself; logging is foreign code
        events.losing = False
        queue.shard.after.append(events.report)
