"""Over SQLite: see conftest.py."""

from tests.unit_suite import load

globals().update(load("test_go_on"))
