"""How the tests of this folder run a machine."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def agree(machine: type[RuleBasedStateMachine], runs: int, steps: int) -> None:
    """Engine and model agree in so many runs, of up to so many steps."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=runs,
            stateful_step_count=steps,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
