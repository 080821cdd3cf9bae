"""The engine against the reference model: every verb, the clock, sweeps, crashes and restarts.

`statistics.py` says what the machine does, `mutations.py` what it notices.
"""

from __future__ import annotations

import os

import pytest

from tests.stateful.agree import agree
from tests.stateful.machines import MemoryMachine, SqliteMachine

SHORT = os.environ.get("BUNQUEUE_SLOW") == "short"
PARTS = 1 if SHORT else 12


def test_the_engine_in_memory_does_what_the_model_does() -> None:
    agree(MemoryMachine, 25, 40)


def test_the_engine_on_sqlite_does_what_the_model_does() -> None:
    agree(SqliteMachine, 8, 30)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_the_engine_in_memory_does_what_the_model_does_at_length(part: int) -> None:
    agree(MemoryMachine, 200 if SHORT else 100, 60)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_the_engine_on_sqlite_does_what_the_model_does_at_length(part: int) -> None:
    agree(SqliteMachine, 80 if SHORT else 40, 50)
