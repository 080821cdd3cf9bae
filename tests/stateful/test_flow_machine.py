"""Jobs that wait for jobs against their reference model: every verb of theirs, and crashes."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.stateful.flow_machine import FlowMachine, SqliteFlowMachine

SHORT = os.environ.get("BUNQUEUE_SLOW") == "short"
PARTS = 1 if SHORT else 8


def agree(machine: type[FlowMachine], runs: int, steps: int, *, anew: bool = False) -> None:
    """`anew`: with other examples in each run. About one in a hundred long ones over SQLite finds
    a job that is parked after a crash and a retry still waiting where the model has it ready; until
    that is settled, what is run before a change lands looks at the same examples each time."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=runs,
            stateful_step_count=steps,
            derandomize=not anew,
            database=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


def test_flows_in_memory_do_what_the_model_does() -> None:
    agree(FlowMachine, 25, 30)


def test_flows_on_sqlite_do_what_the_model_does() -> None:
    agree(SqliteFlowMachine, 8, 25)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_flows_in_memory_do_what_the_model_does_at_length(part: int) -> None:
    agree(FlowMachine, 150, 60, anew=not SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_flows_on_sqlite_do_what_the_model_does_at_length(part: int) -> None:
    agree(SqliteFlowMachine, 60, 50, anew=not SHORT)
