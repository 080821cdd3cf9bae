"""Over SQLite: see conftest.py. The engine against its models, and the disk against the engine."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.property.test_control_model import ControlMachine
from tests.property.test_engine_model import EngineMachine


@pytest.mark.slow
class TestEngine(EngineMachine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=20, stateful_step_count=30)


@pytest.mark.slow
class TestControl(ControlMachine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=20, stateful_step_count=30)
