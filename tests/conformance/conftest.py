"""The suite of the engine over SQLite: a manager that is given no storage gets a file of its own,
and when it closes, what is on disk is compared with what is in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import QueueManager, SqliteStorage
from bunqueue_py import manager as manager_module
from tests.storage_check import check_storage


@pytest.fixture(autouse=True)
def on_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every manager of the test lives on a file, unless the test names a storage itself."""
    chosen, close = manager_module._storage, QueueManager.close
    numbers, paths = itertools.count(), dict[int, str]()

    def storage(given: Any) -> Any:
        if given is not None:
            return chosen(given)
        path = str(tmp_path / f"jobs{next(numbers)}.db")
        made = SqliteStorage(path)
        paths[id(made)] = path
        return made

    def checked_close(self: QueueManager, *arguments: Any, **options: Any) -> bool:
        path = paths.pop(id(self._state.storage), None)
        if path is not None and not any(s.gate for s in self._state.shards.shards):
            try:
                check_storage(self, path)
            finally:
                close(self, *arguments, **options)
        return close(self, *arguments, **options)

    monkeypatch.setattr(manager_module, "_storage", storage)
    monkeypatch.setattr(QueueManager, "close", checked_close)
    yield
