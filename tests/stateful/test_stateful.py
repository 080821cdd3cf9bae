"""The engine against the reference model: every verb, the clock, sweeps, crashes and restarts."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests.stateful.control_rules import (
    DeadLetterRules,
    JobControlRules,
    LimitRules,
    LookRules,
    QueueControlRules,
)
from tests.stateful.run_rules import PushRules
from tests.stateful.storage_rules import StorageRules
from tests.stateful.time_rules import TimeRules

SHORT = os.environ.get("BUNQUEUE_SLOW") == "short"


class MemoryMachine(
    PushRules,
    JobControlRules,
    QueueControlRules,
    LimitRules,
    LookRules,
    DeadLetterRules,
    TimeRules,
):
    """Over memory."""


class SqliteMachine(StorageRules, MemoryMachine):
    """Over a file."""


class TestInMemory(MemoryMachine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=25, stateful_step_count=40)


class TestOnSqlite(SqliteMachine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=8, stateful_step_count=30)


@pytest.mark.slow
class TestInMemoryAtLength(MemoryMachine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=100 if SHORT else 1000, stateful_step_count=60)


MACHINES = (MemoryMachine, SqliteMachine)
