"""Rules of the machine on a file: the process closes in good order, or dies, and comes back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis.stateful import rule

from bunqueue_py import QueueManager, SqliteStorage
from tests.stateful.base import STATISTICS, Base, needs, seldom
from tests.stateful.choices import DIE, QUEUES
from tests.storage_check import check_storage
from tests.unit.sqlite_files import crash_copy


class StorageRules(Base):
    """Without threads every verb commits before it returns, but for those that only set something:
    what is lost with a process that had more to write is the matter of tests/crash."""

    on_disk = True
    ended_before: Counter[tuple[str, str]]
    ended_at_opening: Counter[tuple[str, str]]

    def storage(self) -> Any:
        if not hasattr(self, "folder"):
            self.folder = TemporaryDirectory()
            self.files = 0
            self.path = Path(self.folder.name) / "jobs0.db"
        return SqliteStorage(self.path)

    def open(self) -> None:
        super().open()
        storage: Any = self.manager._state.storage
        # what a power cut would cost is not looked at here, and the disk would take all the time
        storage._session._committer.connection.execute("PRAGMA synchronous = OFF").fetchall()

    def teardown(self) -> None:
        try:
            if hasattr(self, "manager"):
                self.agrees_with_the_disk()
            super().teardown()
        finally:
            if hasattr(self, "folder"):
                self.folder.cleanup()

    @needs(1)
    @rule()
    @seldom
    def agrees_with_the_disk(self) -> None:
        """SPEC 16's fourth invariant. Flushes."""
        STATISTICS["flush"] += 1
        check_storage(self.manager, str(self.path))

    @needs(1)
    @rule()
    @seldom
    def back_up(self) -> None:
        """What is in the copy is what is here; and the file has nothing wrong."""
        STATISTICS["backup, verify"] += 1
        assert self.manager.verify().ok
        self.files += 1
        copy = Path(self.folder.name) / f"copy{self.files}.db"
        self.manager.backup(copy)
        with QueueManager.open_readonly(copy, clock=self.clock) as view:
            for queue in self.model.queues:
                here = self.manager.get_jobs(queue, limit=1000)
                there = view.get_jobs(queue, limit=1000)
                assert sorted(job.id for job in there) == sorted(job.id for job in here)

    @needs(1)
    @rule(die=DIE)
    @seldom
    def close_and_open(self, die: float) -> None:
        self.tick()
        self.model.die = die
        STATISTICS["close"] += 1
        self.manager.close()
        self.come_back(clean=True)

    @needs(1)
    @rule(die=DIE)
    @seldom
    def crash(self, die: float) -> None:
        """A kill is a copy of the file and its log, which is all that a kill leaves."""
        self.tick()
        STATISTICS["crash"] += 1
        self.files += 1
        self.model.die = die
        died = self.manager
        died.flush()
        self.path = crash_copy(self.path, Path(self.folder.name) / f"jobs{self.files}.db")
        died.close()
        self.come_back(clean=False)
        self.count_what_a_kill_left()

    def count_what_a_kill_left(self) -> None:
        """Of ends that were not marked yet the counts are lost; none is made up."""
        for queue in QUEUES:
            for kind in ("completed", "failed"):
                points = self.manager.minute_counts(queue, kind)
                lost = self.model.counted(queue, kind) - sum(point.count for point in points)
                assert lost >= 0
                if lost:
                    STATISTICS["count lost in a crash"] += 1
                    self.model.forget_ends(queue, kind, lost)
                    self.ended_before[queue, kind] -= lost

    def come_back(self, *, clean: bool) -> None:
        before = Counter(end[:2] for end in self.model.ends)
        self.model.restart(clean=clean)
        self.open()
        # of the jobs that died with the process some have failed for good at the opening
        self.ended_at_opening = self.ended_before - before
