"""Over SQLite: see conftest.py. What is counted against what is listed, and the disk against the
engine."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.property.test_control_model import ControlMachine


@pytest.mark.slow
class TestControl(ControlMachine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=20, stateful_step_count=30)
