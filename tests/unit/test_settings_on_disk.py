"""The settings of queues and groups in the file: each change writes what it changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from bunqueue_py import ManagerConfig, Queue, QueueManager
from bunqueue_py.ops.query import check
from bunqueue_py.shard.shard import BROKEN
from bunqueue_py.storage.sqlite.commits import Committer
from bunqueue_py.testing import SeededIds, VirtualClock
from tests.storage_check import check_storage


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(path: Path, clock: VirtualClock) -> Iterator[QueueManager]:
    with opened(path, clock) as manager:
        yield manager


def opened(path: Path, clock: VirtualClock) -> QueueManager:
    config = ManagerConfig(shards=1)
    return QueueManager(path, config=config, clock=clock, background=False, _ids=SeededIds())


def rows(path: Path) -> list[str]:
    """What stands in the file beside jobs; the parts of a name with a slash between."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT kind, key FROM rest ORDER BY kind, key").fetchall()
    return [f"{kind} {key}".replace("\0", "/") for kind, key in found]


CHANGES: dict[str, Callable[[Queue], object]] = {
    "pause": lambda q: q.pause(),
    "resume": lambda q: q.resume(),
    "concurrency": lambda q: q.limits.set_concurrency(3),
    "rate": lambda q: q.limits.set_rate_limit(5, 60),
    "rate cleared": lambda q: q.limits.clear_rate_limit(),
    "cool-down": lambda q: q.limits.cool_down(30),
    "stalls": lambda q: q.stalls.configure(interval=60),
    "dead letters": lambda q: q.dlq.configure(max_retries=7),
    "group paused": lambda q: q.groups["a"].pause(),
    "group concurrency": lambda q: q.groups["a"].set_concurrency(2),
    "group cool-down": lambda q: q.groups["a"].cool_down(30),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whoever_changes_a_setting_keeps_up_with_the_writer(
    manager: QueueManager, change: Callable[[Queue], object]
) -> None:
    queue = Queue("q", manager)
    queue.pause()
    queue.resume()
    queue.pause()
    storage = manager._state.storage
    assert storage is not None
    change(queue)
    # without a thread to write it, whoever keeps up has written it
    assert storage.health().rows_waiting == 0
    check_storage(manager, storage._path)  # type: ignore[attr-defined]


def test_a_change_of_one_group_writes_that_group_alone(
    manager: QueueManager, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue("q", manager)
    queue.pause()
    for name in "abc":
        queue.groups[name].set_concurrency(1)
    written: list[tuple[str, str]] = []
    commit = Committer.commit

    def watched(self: Committer, marks: object) -> None:
        written.extend(marks.rest)  # type: ignore[attr-defined]
        commit(self, marks)  # type: ignore[arg-type]

    monkeypatch.setattr(Committer, "commit", watched)
    queue.groups["b"].pause()
    assert written == [("group", "q\0b")]
    assert rows(path) == ["group q/a", "group q/b", "group q/c", "queue q"]


def test_a_group_without_settings_never_gets_a_row(manager: QueueManager, path: Path) -> None:
    queue = Queue("q", manager)
    queue.add("work", group="a")
    queue.groups["a"].resume()
    job = manager.pull("q", group="a")
    assert job is not None
    manager.ack(job)
    manager.flush()
    assert rows(path) == []


def test_settings_that_are_cleared_leave_the_file(manager: QueueManager, path: Path) -> None:
    queue = Queue("q", manager)
    queue.groups["a"].set_concurrency(1)
    queue.groups["b"].pause()
    queue.groups["a"].set_concurrency(None)
    assert rows(path) == ["group q/b"]
    queue.groups["b"].resume()
    assert rows(path) == []


def test_a_group_whose_only_setting_has_ended_by_time_leaves_the_file(
    manager: QueueManager, clock: VirtualClock, path: Path
) -> None:
    queue = Queue("q", manager)
    queue.groups["a"].cool_down(5)
    queue.groups["b"].cool_down(50)
    clock.advance(seconds=10)
    queue.add("work", group="c")
    job = manager.pull("q", group="c")
    assert job is not None
    manager.ack(job)
    manager.flush()
    assert rows(path) == ["group q/b"]
    check_storage(manager, str(path))


def test_a_setting_that_ended_while_nothing_ran_is_gone_after_the_next_opening(
    path: Path, clock: VirtualClock
) -> None:
    with opened(path, clock) as manager:
        queue = Queue("q", manager)
        queue.groups["a"].cool_down(5)
        queue.groups["b"].set_rate_limit(2, timedelta(minutes=1))
    clock.advance(seconds=10)
    with opened(path, clock) as manager:
        manager.flush()
        assert rows(path) == ["group q/b"]
        assert list(Queue("q", manager).groups) == ["b"]
        check_storage(manager, str(path))


def test_a_group_whose_change_was_broken_off_is_written_anew(
    manager: QueueManager, path: Path
) -> None:
    queue = Queue("q", manager)
    queue.groups["a"].set_concurrency(1)
    shard = manager._state.shards.shards[0]
    groups = manager._state.queues["q"].groups
    assert groups is not None
    with shard.lock:
        # as an exception leaves it that lands between the change and its mark
        shard.gate = BROKEN
        groups.by_name["a"].limits.concurrency = None
    assert list(queue.groups) == []
    manager.flush()
    assert rows(path) == []
    check(manager._state)
    check_storage(manager, str(path))
