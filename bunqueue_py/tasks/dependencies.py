"""The fallback of the drain: what was noted and nobody applied, since its thread was broken off."""

from __future__ import annotations

from ..ops.flow import drain
from ..state import State
from .scheduler import Report


def next_due(state: State) -> int | None:
    """When what is noted may count as broken off; `None` if nothing is noted."""
    if not state.dependencies.pending:
        return None
    now = state.now()
    return now + max(1, state.periods.dependency_fallback - state.dependencies.stuck_for(now))


def tick(state: State) -> Report:
    """Drains, unless somebody is at it; if that has been at one and the same effect for
    `dependency_fallback`, it was broken off. It is due again for as long as something is left."""
    if not state.dependencies.pending:
        return Report(0, None)
    fallback = state.periods.dependency_fallback
    stuck = state.dependencies.stuck_for(state.now()) >= fallback
    done = drain(state, force=stuck)
    left = bool(state.dependencies.pending)
    return Report(done, state.now() + fallback if left else None)
