"""Schedulers and jobs that repeat against their reference model: upserts, removals, clocks,
restarts, kills, in any order."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.stateful.schedule_machine import ScheduleMachine, SqliteScheduleMachine

PARTS = 1 if os.environ.get("BUNQUEUE_SLOW") == "short" else 8


def agree(machine: type[ScheduleMachine], runs: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=runs,
            stateful_step_count=steps,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


def test_schedulers_in_memory_do_what_the_model_does() -> None:
    agree(ScheduleMachine, 6, 25)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_schedulers_in_memory_do_what_the_model_does_at_length(part: int) -> None:
    agree(ScheduleMachine, 80, 50)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_schedulers_on_sqlite_do_what_the_model_does_at_length(part: int) -> None:
    agree(SqliteScheduleMachine, 40, 40)
