"""What the unit tests of files share."""

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A path in a folder that has nothing else in it."""
    inner = tmp_path / "data"
    inner.mkdir()
    return inner / "jobs.db"
