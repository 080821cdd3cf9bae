"""What the library logs: nothing unasked, nothing of anybody's data above DEBUG."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from bunqueue_py import ManagerConfig, Queue, QueueManager, Worker
from bunqueue_py.testing import VirtualClock

SECRET = "4929-1234-payload"


def test_an_application_that_sets_up_no_logging_sees_nothing() -> None:
    code = (
        "import logging, bunqueue_py\n"
        "logging.getLogger('bunqueue_py.anything').error('to nobody')\n"
        "logging.getLogger('elsewhere').error('to stderr')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "to stderr\n"
    assert done.stdout == ""


def test_no_payload_or_result_is_logged_above_debug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Through lives, failures, broken listeners, unserializable results, restarts and a kill."""
    path = tmp_path / "jobs.db"

    def handler(job):  # type: ignore[no-untyped-def]
        job.log(SECRET)
        job.update_progress(1, SECRET)
        if job.name == "bad":
            raise ValueError("no")
        return {SECRET} if job.name == "fine" else object()

    with caplog.at_level(logging.INFO, "bunqueue_py"):
        with QueueManager(path, config=ManagerConfig(measure_times=True)) as manager:
            queue = Queue("q", manager)

            def broken(event: object) -> None:
                raise ValueError("a listener of the application's")

            manager.events.subscribe(broken)
            for name in ("bad", "odd", "fine"):
                queue.add(name, {"card": SECRET}, attempts=1, custom_id=name, tags=["t"])
            with Worker(queue, handler):
                queue.wait_until_empty(10)
            queue.add("left", {"card": SECRET})
            assert manager.pull("q") is not None
            manager.flush()
        clock = VirtualClock()
        manager = QueueManager(path, clock=clock, background=False)
        manager.pull("q", lock_duration=1)
        manager.run_pending()
        manager._state.storage._abandon()  # type: ignore[union-attr]
        QueueManager(path, clock=clock, background=False).close()
    assert caplog.records, "something is logged"
    assert {record.name.partition(".")[0] for record in caplog.records} == {"bunqueue_py"}
    assert SECRET not in caplog.text
