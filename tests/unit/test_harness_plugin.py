"""Handlers called by themselves, and the fixtures for pytest."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import Job, QueueManager, SerializationError, ValidationError
from bunqueue_py.testing import Harness, handler_context, pytest_plugin

START = datetime(2030, 1, 1, tzinfo=timezone.utc)

# -- a handler by itself ---------------------------------------------------------------------------


def test_a_handler_can_be_called_by_itself() -> None:
    def greet(job: Job) -> str:
        job.update_progress(50, "half")
        return f"hello {job.data['name']}"

    job = handler_context({"name": "ada"})
    assert greet(job) == "hello ada"
    assert (job.attempt, job.state, job.now, job.name) == (1, "active", START, "default")
    assert job.token is not None
    assert job.refresh().progress == 50
    assert job.extend_lock(5)


@pytest.mark.parametrize("attempt", [1, 2, 3, 20])
def test_it_is_in_the_run_that_was_asked_for(attempt: int) -> None:
    job = handler_context(attempt=attempt)
    assert (job.attempt, job.attempts_made) == (attempt, attempt - 1)
    assert job.max_attempts == max(3, attempt)
    assert (job.error is None) is (attempt == 1)


def test_it_has_the_options_of_a_job_and_the_moment_that_was_given() -> None:
    noon = START + timedelta(hours=12)
    job = handler_context(
        [1], 2, name="pay", queue="orders", now=noon, priority=3, attempts=2, tags=["a"], group="g"
    )
    assert (job.queue, job.name, job.priority, job.tags) == ("orders", "pay", 3, ("a",))
    assert (job.now, job.max_attempts, job.group) == (noon, 2, "g")


def test_its_payload_was_encoded_and_decoded() -> None:
    data = {"at": START, "items": [1]}
    job = handler_context(data)
    data["items"] = []
    assert job.data == {"at": START, "items": [1]}
    with pytest.raises(SerializationError):
        handler_context(object())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"attempt": 0}, "attempt"),
        ({"attempt": 4, "attempts": 3}, "at most attempts"),
        ({"delay": 3}, "runs already"),
        ({"run_at": START}, "runs already"),
        ({"now": datetime(2030, 1, 1)}, "time zone"),
        ({"priority": "high"}, "priority"),
        ({"queue": "no good"}, "queue"),
    ],
)
def test_wrong_contexts_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        handler_context(**arguments)
    with pytest.raises(TypeError):
        handler_context(retries=3)  # type: ignore[call-arg]


def test_it_leaves_nothing_behind() -> None:
    threads = threading.active_count()
    job = handler_context([1])
    engine = weakref.ref(job._manager)
    assert threading.active_count() == threads
    del job
    gc.collect()
    assert engine() is None


# -- the fixtures ----------------------------------------------------------------------------------

Around = Callable[..., Any]


def played(fixture: Any, *arguments: Any) -> Any:
    """The generator that a fixture is made of."""
    function = getattr(fixture, "_get_wrapped_function", lambda: fixture.__wrapped__)()
    return function(*arguments)


@pytest.mark.parametrize("name", ["bunqueue", "bunqueue_sqlite"])
def test_a_fixture_gives_a_harness_and_closes_it(name: str, tmp_path: Path) -> None:
    given = () if name == "bunqueue" else (tmp_path,)
    around = played(getattr(pytest_plugin, name), *given)
    harness = next(around)
    assert isinstance(harness, Harness)
    harness.worker("q", lambda job: "done")
    job = harness.queue("q").add("a", delay=60)
    harness.drain()
    harness.assert_completed(job)
    assert [path.name for path in tmp_path.glob("jobs.db")] == ["jobs.db"][: len(given)]
    assert list(around) == []
    if given:
        with QueueManager(tmp_path / "jobs.db", background=False) as manager:
            assert manager.get_state(job) == "completed"


@pytest.mark.parametrize("name", ["bunqueue", "bunqueue_sqlite"])
def test_a_fixture_fails_the_test_that_leaks_a_thread(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B091 (taskforcesh/bullmq#850): one failing test cannot poison the next."""
    monkeypatch.setattr(pytest_plugin, "_GRACE", 0.01)
    around = played(getattr(pytest_plugin, name), *(() if name == "bunqueue" else (tmp_path,)))
    next(around)
    stop = threading.Event()
    ours = threading.Thread(target=stop.wait, name="bunqueue-worker-1-0")
    foreign = threading.Thread(target=stop.wait, name="something else")
    ours.start()
    foreign.start()
    try:
        with pytest.raises(pytest.fail.Exception, match=r"leaves 1 thread.*bunqueue-worker-1-0"):
            list(around)
        # the next test is not blamed for it
        assert len(list(played(pytest_plugin.bunqueue))) == 1
    finally:
        stop.set()
        ours.join()
        foreign.join()


def test_a_thread_that_is_about_to_end_is_no_leak() -> None:
    around = played(pytest_plugin.bunqueue)
    next(around)
    manager = QueueManager()
    manager.push("q", delay=3600, ttl=3600)
    closer = threading.Thread(target=manager.close, name="bunqueue-closer")
    closer.start()
    assert list(around) == []


@pytest.mark.slow
def test_the_kit_does_not_need_pytest() -> None:
    """The plugin alone imports it, and only who asks for the plugin imports that."""
    import subprocess

    code = "import sys, bunqueue_py.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.slow
def test_the_plugin_works_in_a_project_of_its_own_and_in_several_processes(tmp_path: Path) -> None:
    """Opt-in with one line, each test with its own harness, safe under pytest-xdist."""
    import subprocess

    (tmp_path / "conftest.py").write_text(
        'pytest_plugins = ["bunqueue_py.testing.pytest_plugin"]\n'
    )
    (tmp_path / "test_it.py").write_text(
        """
import threading, pytest
from bunqueue_py import QueueManager

@pytest.mark.parametrize("n", range(8))
def test_each_has_its_own(bunqueue, bunqueue_sqlite, n):
    for h in (bunqueue, bunqueue_sqlite):
        assert str(h.manager.counts().total) == "0"
        h.worker("q", lambda job: job.data)
        assert h.queue("q").add("a", n).id.startswith("00000000-0001-")
        assert len(h.drain().completed) == 1

def test_leaks(bunqueue):
    QueueManager(str(bunqueue.now.year) + ".db")
"""
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n2", "-p", "no:cacheprovider", "--rootdir", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "9 passed, 1 error" in run.stdout, run.stdout + run.stderr
    assert "the test leaves 1 thread(s) of bunqueue_py running: bunqueue-storage" in run.stdout
