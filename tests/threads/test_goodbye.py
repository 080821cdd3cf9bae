"""The goodbye matrix: how a worker was stopped, by what runs its handlers, by where jobs are kept.

The handler never returns by itself. However it is stopped, the job goes back uncharged, nothing
hangs, and on a file the next process finds it. B085, B086, B091.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bunqueue_py import QueueManager
from tests.threads.patience import TIMEOUT, until

ROOT = Path(__file__).resolve().parents[2]
LONG = pytest.mark.skipif(os.environ.get("BUNQUEUE_SLOW") == "short", reason="the long form")
KINDS = {
    "thread": ("threading.Event().wait()", "plain", ""),
    "async": ("await asyncio.sleep(3600)", "async", ""),
    "process": ("threading.Event().wait()", "plain", 'executor="process", '),
}
WAYS = {
    "close": "begin(); print(worker.close(timeout=0.1)); manager.close()",
    "force": "begin(); print(worker.close(force=True)); manager.close()",
    "manager": "begin(); print(manager.close(timeout=0.1))",
    "exit": "begin()",
    "sys.exit": "begin(); sys.exit(0)",
    "raise": 'begin(); sys.stderr.close(); raise ValueError("unhandled")',
    "run": "worker.run(); manager.close()",
    "two signals": "worker.run(); manager.close()",
    "killed": "begin(); manager.flush(); os.kill(os.getpid(), signal.SIGKILL)",
}
SCRIPT = """
import asyncio, os, signal, sys, threading
from pathlib import Path
from bunqueue_py import Queue, QueueManager, Worker

HERE = Path(__file__).parent

{define} handler(job):
    (HERE / "begun").write_text("x")
    {body}

def begin():
    worker.start()
    while not (HERE / "begun").exists():
        threading.Event().wait(0.005)

if __name__ == "__main__":
    manager = QueueManager({storage})
    queue = Queue("q", manager)
    worker = Worker(queue, handler, {options}close_timeout={patience})
    job = queue.add("n", attempts=1)
    {way}
"""


def script(tmp_path: Path, way: str, kind: str, storage: str) -> Path:
    body, form, options = KINDS[kind]
    path = tmp_path / "script.py"
    text = SCRIPT.format(
        define="async def" if form == "async" else "def",
        body=body,
        options=options,
        storage=repr(str(tmp_path / "jobs.db")) if storage == "sqlite" else "",
        way=WAYS[way],
        # nothing but the second signal ends it in time
        patience=60 if way == "two signals" else 0.1,
    )
    path.write_text(textwrap.dedent(text))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["sqlite", pytest.param("memory", marks=LONG)])
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("way", list(WAYS))
def test_a_worker_says_goodbye_and_its_job_goes_back(
    tmp_path: Path, way: str, kind: str, storage: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, script(tmp_path, way, kind, storage)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # and run() has put its signal handlers in place before that
    until((tmp_path / "begun").exists, "the handler begins", 6 * TIMEOUT)
    if way in ("run", "two signals"):
        process.send_signal(signal.SIGTERM)
    if way == "two signals":
        process.send_signal(signal.SIGINT)
    began = time.monotonic()
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert time.monotonic() - began < 30
    assert process.returncode == {"raise": 1, "killed": -signal.SIGKILL}.get(way, 0), err
    if way in ("close", "force", "manager"):
        assert out == "False\n"
    if way != "raise":
        assert err == ""
    if storage == "sqlite":
        with QueueManager(tmp_path / "jobs.db") as manager:
            assert manager.verify().ok
            (job,) = manager.get_jobs("q")
            if way == "killed":
                assert (job.state, job.failed_reason) == ("failed", "worker_lost")
            else:
                assert (job.state, job.attempts_made) == ("waiting", 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_closing_from_inside_a_handler_never_hangs(tmp_path: Path, kind: str) -> None:
    """B091. A process has no worker to close; there a listener does it."""
    path = tmp_path / "script.py"
    define = "async def" if kind == "async" else "def"
    path.write_text(
        textwrap.dedent(f"""
        from bunqueue_py import Queue, QueueManager, Worker

        {define} handler(job):
            if {kind != "process"}:
                worker.close()
                manager.close()
            return 1

        def listener(*values):
            worker.close()
            manager.close()

        if __name__ == "__main__":
            manager = QueueManager()
            queue = Queue("q", manager)
            worker = Worker(queue, handler, {KINDS[kind][2]})
            if {kind == "process"}:
                worker.on("completed", listener)
            queue.add("n")
            worker.run()
            manager.close()
        """)
    )
    run = subprocess.run(
        [sys.executable, path],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=6 * TIMEOUT,
    )
    assert run.returncode == 0, run.stderr


TALKATIVE = """
import logging, os, sys
from bunqueue_py import Queue, QueueManager, Worker

logging.basicConfig(level=logging.INFO, stream=sys.stdout)
manager = QueueManager("jobs.db")
queue = Queue("q", manager)

def handler(job):
    print("working on", job.data)
    logging.info("working on %s", job.data)

worker = Worker(queue, handler, concurrency=4, close_timeout=0.5).start()
queue.add_bulk([("n", n) for n in range(100)])
queue.add("n", 100).result(timeout=20)
"""
ENDS = {"return": ("", 0), "exit": ("sys.exit(3)", 3), "error": ("raise ValueError('mine')", 1)}
ENDS["at once"] = ("os._exit(4)", 4)


@pytest.mark.slow
@pytest.mark.parametrize("end", list(ENDS))
def test_a_program_ends_with_its_own_code_and_its_file_is_whole(
    tmp_path: Path, end: str, slow_rounds: Callable[[int, int], int]
) -> None:
    """B086: 500 runs of a short program whose handlers print and log to the very end."""
    call, code = ENDS[end]
    (tmp_path / "script.py").write_text(TALKATIVE + call)
    for _ in range(slow_rounds(1, 125)):
        run = subprocess.run(
            [sys.executable, tmp_path / "script.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert run.returncode == code, run.stderr
        wanted = "ValueError: mine" if end == "error" else ""
        assert run.stderr.strip().rpartition("\n")[2] == wanted
        with QueueManager(tmp_path / "jobs.db") as manager:
            report = manager.verify()
            assert report.ok, report
            manager.obliterate("q", force=True)


@pytest.mark.slow
def test_a_thread_that_outlives_the_main_thread_may_still_use_the_manager(tmp_path: Path) -> None:
    """The interpreter waits for it, and only then closes what is open."""
    path = tmp_path / "script.py"
    path.write_text(
        textwrap.dedent("""
        import threading
        from bunqueue_py import Queue, QueueManager, Worker

        manager = QueueManager("jobs.db")
        queue = Queue("q", manager)
        Worker(queue, lambda job: job.data + 1).start()

        def late():
            threading.main_thread().join()
            print(queue.add("n", 1).result(timeout=20))

        threading.Thread(target=late, daemon=False).start()
        """)
    )
    run = subprocess.run(
        [sys.executable, path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "2\n", "")
