"""A disk that fails or stands still on demand, beneath every SQLite storage of a test."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from typing import Any

import pytest

from bunqueue_py.model.rows import Marks
from bunqueue_py.storage.sqlite.commits import Committer


class Disk:
    """Commits raise `fault` if there is one, and stand still at a closed `gate`, having set
    `reached`. `lasts` is how many commits go well before the fault shows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fault: Exception | None = None
        self.lasts = 0
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        commit = Committer.commit

        def slow_commit(committer: Committer, marks: Marks) -> None:
            if not self.gate.is_set():
                self.reached.set()
                assert self.gate.wait(60)
            if self.fault is not None:
                if not self.lasts:
                    raise self.fault.with_traceback(None)
                self.lasts -= 1
            commit(committer, marks)

        monkeypatch.setattr(Committer, "commit", slow_commit)

    def fail(self, lasts: int = 0) -> None:
        self.fault, self.lasts = sqlite3.OperationalError("disk I/O error"), lasts

    def mend(self) -> None:
        self.fault = None


def on_disk(path: Any) -> dict[str, int]:
    """The jobs in the file and their states, seen from outside."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as outside:
        return dict(outside.execute("SELECT id, state FROM jobs").fetchall())
