"""Jobs that wait for jobs against their reference model: every verb of theirs, and crashes."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.stateful.flow_machine import FlowMachine, SqliteFlowMachine

PARTS = 1 if os.environ.get("BUNQUEUE_SLOW") == "short" else 8


def agree(machine: type[FlowMachine], runs: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=runs,
            stateful_step_count=steps,
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
    agree(FlowMachine, 150, 60)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_flows_on_sqlite_do_what_the_model_does_at_length(part: int) -> None:
    agree(SqliteFlowMachine, 60, 50)
