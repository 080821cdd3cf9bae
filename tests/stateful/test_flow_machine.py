"""Jobs that wait for jobs against their reference model: every verb of theirs, and crashes."""

from __future__ import annotations

import os

import pytest

from tests.stateful.agree import agree
from tests.stateful.flow_machine import FlowMachine, SqliteFlowMachine

PARTS = 1 if os.environ.get("BUNQUEUE_SLOW") == "short" else 8


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
