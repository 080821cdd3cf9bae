"""The machines over SQLite have few jobs at a time; they go to the file as those of a flood do."""

from __future__ import annotations

import pytest

from bunqueue_py.storage.sqlite import commits


@pytest.fixture(autouse=True)
def few_rows_go_by_the_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "MIN_PACKED", 1)
