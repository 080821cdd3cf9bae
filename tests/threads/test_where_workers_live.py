"""What servers, reloaders and notebooks do to a worker, played here without them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import ForkedManagerError, Job, Queue, QueueManager, Worker
from tests.threads.patience import TIMEOUT

ROOT = Path(__file__).resolve().parents[2]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def run(script: str, folder: Path, *arguments: str) -> str:
    path = folder / "app.py"
    path.write_text(textwrap.dedent(script))
    made = subprocess.run(
        [sys.executable, path, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


@needs_fork
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_preloading_server_forks_and_each_child_starts_its_own(tmp_path: Path) -> None:
    """B088: gunicorn --preload. What was started at import is there in the parent only; what the
    hook after the fork starts works."""
    with QueueManager() as inherited, Worker("q", lambda job: None, manager=inherited) as worker:
        results = []
        for n in range(3):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                said = b"bad"
                try:
                    assert not worker.is_running
                    with pytest.raises(ForkedManagerError):
                        inherited.push("q")
                    with QueueManager(tmp_path / f"jobs{n}.db") as manager:
                        queue = Queue("q", manager)
                        with Worker(queue, lambda job: job.data + 1):
                            said = b"%d" % queue.add("n", n).result(timeout=TIMEOUT)
                finally:
                    os.write(write, said)
                    os._exit(0)
            os.close(write)
            os.waitpid(child, 0)
            results.append(os.read(read, 100))
            os.close(read)
        assert results == [b"1", b"2", b"3"]
        assert inherited.push("q").result(timeout=TIMEOUT) is None


@needs_fork
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forks_while_threads_push_leave_no_child_hanging_on_a_lock() -> None:
    """B088."""
    stop = threading.Event()
    with QueueManager() as manager:

        def push() -> None:
            while not stop.is_set():
                manager.push("q", 1)

        threads = [threading.Thread(target=push) for _ in range(8)]
        for thread in threads:
            thread.start()
        try:
            with Worker("q", lambda job: None, manager=manager, concurrency=2) as worker:
                for _ in range(20):
                    child = os.fork()
                    if child == 0:
                        code = 1
                        try:
                            manager.push("q")
                        except ForkedManagerError:
                            code = 0 if worker.close() else 2
                        os._exit(code)
                    assert os.waitpid(child, 0)[1] == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join(TIMEOUT)


@pytest.mark.slow
def test_a_reloader_that_imports_the_program_twice_runs_a_job_once(tmp_path: Path) -> None:
    """B089: the watcher imports it too, and opens nothing; what serves opens the file when it is
    first used, and so does the one that takes its place."""
    script = """
    import os, subprocess, sys
    from functools import cache
    from bunqueue_py import Queue, QueueManager, Worker

    def handler(job):
        with open("ran", "a") as file:
            file.write(f"{job.data} ")

    @cache
    def queue():
        manager = QueueManager("jobs.db")
        mail = Queue("mail", manager)
        Worker(mail, handler).start()
        return mail

    if os.environ.get("RUN_MAIN") != "true":
        for change in range(3):
            env = {**os.environ, "RUN_MAIN": "true"}
            code = subprocess.call([sys.executable, __file__, str(change)], env=env)
            assert code == 0
    else:
        queue().add("n", int(sys.argv[1])).result(timeout=20)
    """
    run(script, tmp_path)
    assert (tmp_path / "ran").read_text().split() == ["0", "1", "2"]


@pytest.mark.slow
def test_of_four_processes_that_open_one_file_one_works_and_the_others_are_told(
    tmp_path: Path,
) -> None:
    """B089."""
    script = """
    import subprocess, sys
    from bunqueue_py import Queue, QueueManager, StorageLockedError, Worker

    def handler(job):
        with open("ran", "a") as file:
            file.write("x")

    if len(sys.argv) == 1:
        children = [subprocess.Popen([sys.executable, __file__, "child"],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
        said = sorted(child.stdout.readline().strip() for child in children)
        for child in children:
            child.communicate("")
        print(*said)
    else:
        try:
            manager = QueueManager("jobs.db")
        except StorageLockedError:
            print("locked", flush=True)
        else:
            queue = Queue("q", manager)
            Worker(queue, handler).start()
            queue.add("n").result(timeout=20)
            print("ran", flush=True)
        sys.stdin.read()
    """
    assert run(script, tmp_path) == "locked locked locked ran\n"
    assert (tmp_path / "ran").read_text() == "x"


def test_a_cell_of_a_notebook_may_be_run_again() -> None:
    """Jupyter: cells run in one namespace, on a thread whose event loop is running."""
    space: dict[str, Any] = {"QueueManager": QueueManager, "Queue": Queue, "Worker": Worker}
    start = textwrap.dedent("""
        if "worker" in globals():
            manager.close()
        manager = QueueManager()
        queue = Queue("q", manager)
        worker = Worker(queue, lambda job: job.data * 2).start()
        result = queue.add("n", 4).result(timeout=10)
    """)

    async def kernel() -> None:
        for _ in range(3):
            exec(start, space)
            assert space["result"] == 8
            await asyncio.sleep(0)

        async def handler(job: Job) -> int:
            return int(job.data) + 1

        async with Worker("async", handler, manager=space["manager"]):
            assert await space["manager"].push("async", 1) == 2
        space["manager"].close()

    asyncio.run(kernel())


CHILD = """
    import multiprocessing as mp, sys, time
    from bunqueue_py import (
        ForkedManagerError, Queue, QueueManager, SqliteStorage, StorageLockedError, Worker
    )

    heard = []

    def work(how, inherited, answers):
        if how == "fork":
            try:
                inherited.push("q")
            except ForkedManagerError:
                answers.put("forked")
        else:
            answers.put("no manager came along" if inherited is None else "bad")
        try:
            QueueManager("jobs.db")
        except StorageLockedError:
            answers.put("locked")
        answers.put("waiting")
        with QueueManager(SqliteStorage("jobs.db", lock_timeout=30)) as manager:
            queue = Queue("q", manager)
            with Worker(queue, lambda job: job.data * 2):
                queue.wait_until_empty(timeout=30)
        answers.put(len(heard))

    if __name__ == "__main__":
        how = sys.argv[1]
        context = mp.get_context(how)
        answers = context.Queue()
        manager = QueueManager("jobs.db")
        manager.events.subscribe(lambda event: heard.append(event.type), types="completed")
        queue = Queue("q", manager)
        jobs = [queue.add("n", n) for n in range(5)]
        with Worker(queue, lambda job: job.data * 2):
            assert queue.add("here", 10).result(timeout=30) == 20
            queue.wait_until_empty(timeout=30)
        while len(heard) < 6:
            time.sleep(0.01)
        queue.pause()
        later = [queue.add("n", n) for n in range(5, 8)]
        inherited = manager if how == "fork" else None
        child = context.Process(target=work, args=(how, inherited, answers))
        child.start()
        said = [answers.get(timeout=30) for _ in range(3)]
        queue.resume()
        manager.close()
        said.append(answers.get(timeout=60))
        child.join(30)
        with QueueManager("jobs.db") as manager:
            queue = Queue("q", manager)
            seen = [queue.get_job(job.id) for job in later]
            print(*said)
            print(len(heard), queue.counts().completed, child.exitcode)
            print([job.state.value for job in seen], [job.result(timeout=1) for job in seen])
            print(sum(point.count for point in queue.metrics("completed")))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_what_a_child_does_counts_on_the_file_and_is_heard_in_the_child_alone(
    tmp_path: Path, how: str
) -> None:
    """B092: listeners are of one process each; what the file tells is complete, whichever process
    did the work. The file has one owner at a time, and says so to the other."""
    if how == "fork" and not hasattr(os, "fork"):
        pytest.skip("needs fork")
    said = run(CHILD, tmp_path, how).splitlines()
    # a fork has a copy of what the parent had heard by then
    first, copy = ("forked", 6) if how == "fork" else ("no manager came along", 0)
    assert said == [
        f"{first} locked waiting {copy}",
        "6 9 0",
        "['completed', 'completed', 'completed'] [10, 12, 14]",
        "9",
    ]
