"""Schedulers and jobs that repeat against their reference model: upserts, removals, clocks,
restarts, kills, in any order."""

from __future__ import annotations

import os

import pytest

from tests.stateful.agree import agree
from tests.stateful.schedule_machine import ScheduleMachine, SqliteScheduleMachine

SHORT = os.environ.get("BUNQUEUE_SLOW") == "short"
PARTS = 1 if SHORT else 8


def test_schedulers_in_memory_do_what_the_model_does() -> None:
    agree(ScheduleMachine, 6, 25)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_schedulers_in_memory_do_what_the_model_does_at_length(part: int) -> None:
    agree(ScheduleMachine, 40 if SHORT else 100, 50)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_schedulers_on_sqlite_do_what_the_model_does_at_length(part: int) -> None:
    agree(SqliteScheduleMachine, 15 if SHORT else 40, 40)
