"""A file of every schema version that was released, opened with today's release.

A change of the tables raises VERSION, adds a migration, and then a file of its own here.
"""

import shutil
import sqlite3
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from bunqueue_py import DlqConfig, Job, Queue, QueueManager, RateLimit, StallConfig
from bunqueue_py.model.options import Options
from bunqueue_py.model.rows import DATA, NAME, QUEUE
from bunqueue_py.ops.query import check
from bunqueue_py.storage.sqlite import schema
from bunqueue_py.storage.sqlite.opening import close_database, open_database
from bunqueue_py.storage.sqlite.rows import RowDecoder
from bunqueue_py.storage.sqlite.verify import verify
from bunqueue_py.testing import VirtualClock
from bunqueue_py.types import JobCounts
from tests.fixtures import make_schema
from tests.storage_check import check_storage

NOW = 1_893_456_010_000
"""Ten seconds into the story that the fixtures tell."""


def ask(path: Path, query: str) -> object:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchone()[0]


def fixtures() -> dict[int, Path]:
    """A file of each released version, made by `tests/fixtures/make_schema.py`."""
    found = make_schema.FOLDER.glob("schema_v*.sqlite")
    return {int(each.stem.removeprefix("schema_v")): each for each in found}


def test_there_is_a_file_of_every_version() -> None:
    assert set(fixtures()) == set(range(1, schema.VERSION + 1))


def test_the_tables_of_today_are_those_of_the_file_of_their_version(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        schema.create(connection)
    query = "SELECT group_concat(name || ': ' || sql, '; ') FROM sqlite_schema WHERE sql NOT NULL"
    assert ask(path, query) == ask(fixtures()[schema.VERSION], query)


@pytest.mark.parametrize("version", sorted(fixtures()))
def test_a_file_of_every_version_opens_and_each_of_its_jobs_is_understood(
    path: Path, version: int
) -> None:
    shutil.copyfile(fixtures()[version], path)
    before = ask(path, "SELECT COUNT(*) FROM jobs")
    assert ask(path, "PRAGMA user_version") == version
    owner = open_database(str(path))
    assert owner.migrated_from == (None if version == schema.VERSION else version)
    close_database(owner.connection, str(path))
    decoder = RowDecoder(Options())
    queues: dict[str, list[str]] = {}

    def decode(raw: tuple[object, ...]) -> None:
        row = decoder.row(raw)
        queues.setdefault(row[QUEUE], []).append(row[NAME])
        assert row[DATA] is not None

    report = verify(str(path), NOW, decode)
    assert report.problems == ()
    assert report.jobs == JobCounts(
        waiting=4, prioritized=0, delayed=2, active=1, completed=3, failed=1
    )
    assert report.jobs.total == before
    assert {queue: sorted(names) for queue, names in queues.items()} == {
        "done": ["grouped", "long", "short"],
        "failing": ["again", "no"],
        "running": ["now"],
        "waiting": ["exponential", "key", "later", "lifo", "plain"],
    }


JOBS = """
done short completed: {'to': 'ada@example.com'} -> {'sent': True}
done long completed: xxxx... -> xxxx...
done grouped completed: [1, 2.5, None, True] -> None, group g
failing no failed: naïve \U0001f600, tags a b, 1 of 1 attempts, half-way, the first
failing again delayed: xxxx..., 1 of 5 attempts, half-way, the second \\ud800
running now prioritized: None, priority 1000000
waiting plain waiting: None
waiting lifo waiting: 1, priority -3
waiting later delayed: 2, custom id nightly
waiting key waiting: 3, key k
waiting exponential waiting: 4
"""


@pytest.mark.parametrize("version", sorted(fixtures()))
def test_a_manager_finds_everything_in_a_file_of_every_version(path: Path, version: int) -> None:
    shutil.copyfile(fixtures()[version], path)
    clock = VirtualClock(make_schema.START + timedelta(seconds=10))
    with QueueManager(path, clock=clock, background=False) as manager:
        found = [
            described(manager, job) for name in manager.queues() for job in manager.get_jobs(name)
        ]
        assert sorted(found) == sorted(JOBS.strip().splitlines())
        queue = Queue("settings", manager)
        limits = queue.limits.status()
        assert (limits.concurrency, limits.rate_limit) == (3, RateLimit(100, 60))
        assert limits.rate_limit_ends_at == make_schema.START + timedelta(seconds=86_405)
        assert queue.is_paused
        assert queue.stalls.config == StallConfig(interval=60, max_stalls=0, grace=1)
        assert queue.dlq.config == DlqConfig(
            auto_retry=True, retry_interval=60, max_age=86_400, max_entries=10
        )
        assert [(g, queue.groups[g].is_paused) for g in queue.groups] == [
            ("bounded", False),
            ("cooling", False),
            ("paused", True),
        ]
        (letter,) = Queue("failing", manager).dlq.entries()
        assert [attempt.error for attempt in letter.attempts] == ["the first"]
        assert Queue("gone", manager).deduplication.owner("g") is not None
        assert Queue("waiting", manager).deduplication.owner("k") is not None
        check_storage(manager, str(path))
        queue.resume()
        ran = [job.name for job in iter(partial(manager.pull, "waiting"), None)]
        assert ran == ["plain", "key", "exponential", "lifo"]
        check(manager._state)


def described(manager: QueueManager, job: Job) -> str:
    """A line of `JOBS`."""
    text = f"{job.queue} {job.name} {job.state}: {short(job.data)}"
    if job.state == "completed":
        text += f" -> {short(manager.get_result(job.id))}"
    parts = {
        "group": job.group,
        "priority": job.priority,
        "custom id": job.custom_id,
        "key": job.deduplication_key,
        "tags": " ".join(job.tags),
    }
    text += "".join(f", {name} {value}" for name, value in parts.items() if value)
    if job.attempts_made:
        text += f", {job.attempts_made} of {job.max_attempts} attempts"
        text += f", {job.progress_message}, {job.error}"
    return text


def short(value: object) -> str:
    return "xxxx..." if value == make_schema.LONG else str(value)
