"""`manager.aio`, `await job` and async iteration: nothing here may hold up an event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    Ack,
    BunqueueError,
    Job,
    JobNotFoundError,
    ManagerClosedError,
    Queue,
    QueueEvents,
    QueueManager,
    SqliteStorage,
    ValidationError,
    WaitTimeoutError,
    Worker,
)
from bunqueue_py.aio import AsyncCalls
from bunqueue_py.ops.query import check
from bunqueue_py.testing import VirtualClock
from tests.threads.patience import TIMEOUT


@pytest.fixture(params=["memory", pytest.param("sqlite", marks=pytest.mark.slow)])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QueueManager]:
    storage = None if request.param == "memory" else tmp_path / "jobs.db"
    with QueueManager(storage) as manager:
        yield manager
        if not manager._state.shards.shards[0].gate:
            check(manager._state)


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(main(), TIMEOUT)

    return asyncio.run(bounded())


def test_a_job_goes_all_its_way_by_coroutines(manager: QueueManager) -> None:
    async def main() -> Any:
        aio = manager.aio
        added = await aio.push("q", [1, 2], name="sum", durable=True, priority=3)
        held = await aio.pull("q", timeout=5)
        assert held is not None
        outcome = await aio.ack(held, sum(held.data))
        await aio.flush()
        return held == added, outcome.applied, await aio.wait_for(added), await added

    assert run(main) == (True, True, 3, 3)


def test_batches_and_failures_too(manager: QueueManager) -> None:
    async def main() -> Any:
        aio = manager.aio
        await aio.push_batch("q", [("n", n) for n in range(3)])
        jobs = await aio.pull_batch("q", 5)
        outcomes = await aio.ack_batch([Ack(jobs[0], 1), Ack(jobs[1])])
        failed = await aio.fail(jobs[2], "no", unrecoverable=True)
        return [o.applied for o in (*outcomes, failed)], manager.counts("q").failed

    assert run(main) == ([True] * 3, 1)


def test_a_hundred_coroutines_wait_for_jobs_without_a_thread_each(manager: QueueManager) -> None:
    async def main() -> Any:
        pulls = [asyncio.create_task(manager.aio.pull("q", timeout=None)) for _ in range(100)]
        await asyncio.sleep(0)
        threads = sum("bunqueue-aio" in t.name for t in threading.enumerate())
        manager.push_batch("q", [("n", n) for n in range(100)])
        jobs = await asyncio.gather(*pulls)
        return threads, sorted(job.data for job in jobs if job)

    assert run(main) == (0, list(range(100)))


def test_a_pull_waits_no_longer_than_its_timeout_and_for_what_is_delayed(
    manager: QueueManager,
) -> None:
    async def main() -> Any:
        nothing = await manager.aio.pull("q", timeout=0.01)
        manager.push("q", "late", delay=0.03)
        job = await manager.aio.pull("q", timeout=5)
        return nothing, job and job.data

    assert run(main) == (None, "late")


def test_a_pull_that_is_cancelled_leaves_its_job_to_the_next(manager: QueueManager) -> None:
    async def main() -> Any:
        first = asyncio.create_task(manager.aio.pull("q", timeout=None))
        second = asyncio.create_task(manager.aio.pull("q", timeout=None))
        await asyncio.sleep(0.01)
        # the wake that was meant for the first must not be lost with it
        manager.push("q", 1)
        first.cancel()
        job = await second
        with pytest.raises(asyncio.CancelledError):
            await first
        return job and job.data

    assert run(main) == 1


def test_a_pull_that_is_cancelled_while_its_job_goes_to_disk_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash a job that is handed out is on disk first, which a coroutine waits for."""
    path = tmp_path / "jobs.db"

    async def main(manager: QueueManager) -> Any:
        reached, go_on = threading.Event(), threading.Event()
        waits = SqliteStorage.wait_committed

        def slow(self: SqliteStorage, *arguments: Any) -> None:
            reached.set()
            assert go_on.wait(TIMEOUT)
            waits(self, *arguments)

        monkeypatch.setattr(SqliteStorage, "wait_committed", slow)
        pull = asyncio.create_task(manager.aio.pull("q", timeout=None))
        while not reached.is_set():
            await asyncio.sleep(0.002)
        active = manager.counts("q").active
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull
        go_on.set()
        return active, manager.counts("q").active, manager.counts("q").waiting

    with QueueManager(path) as manager:
        job = manager.push("q")
    with QueueManager(path) as manager:
        (shard,) = {manager._state.index[job.id].queue.shard}
        shard.careful_ms = manager._state.now() + 60_000
        assert run(lambda: main(manager)) == (1, 0, 1)
        assert manager.get_job(job.id).attempts_made == 0  # type: ignore[union-attr]


def test_a_durable_push_does_not_hold_up_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with QueueManager(tmp_path / "jobs.db") as manager:
        waits, go_on = SqliteStorage.wait_committed, threading.Event()

        def slow(self: SqliteStorage, *arguments: Any) -> None:
            assert go_on.wait(TIMEOUT)
            waits(self, *arguments)

        monkeypatch.setattr(SqliteStorage, "wait_committed", slow)

        async def main() -> bool:
            push = asyncio.create_task(manager.aio.push("q", durable=True))
            for _ in range(20):
                await asyncio.sleep(0.001)
            waited = not push.done()
            go_on.set()
            await push
            return waited

        assert run(main)


def test_the_errors_are_those_of_the_plain_calls(manager: QueueManager) -> None:
    async def main() -> None:
        with pytest.raises(ValidationError, match="priority"):
            await manager.aio.push("q", priority=1 << 40)
        with pytest.raises(ValidationError, match="max_jobs"):
            await manager.aio.pull_batch("q", 0, timeout=1)
        with pytest.raises(JobNotFoundError):
            await manager.aio.wait_for("nobody")
        job = await manager.aio.push("q")
        with pytest.raises(WaitTimeoutError):
            await manager.aio.wait_for(job, timeout=0.01)

    run(main)


def test_closing_the_manager_ends_every_coroutine_that_waits() -> None:
    manager = QueueManager()

    async def main() -> list[str]:
        job = manager.push("other")
        waits = [
            asyncio.ensure_future(manager.aio.pull("q", timeout=None)),
            asyncio.ensure_future(manager.aio.wait_for(job)),
        ]
        await asyncio.sleep(0.01)
        await asyncio.to_thread(manager.close)
        ends = await asyncio.gather(*waits, return_exceptions=True)
        with pytest.raises(ManagerClosedError):
            await manager.aio.push("q")
        return [type(e).__name__ for e in ends]

    assert run(main) == ["ManagerClosedError"] * 2


def test_without_threads_a_pull_answers_at_once() -> None:
    async def main() -> Any:
        with QueueManager(clock=VirtualClock(), background=False) as manager:
            with pytest.raises(BunqueueError, match="never end"):
                await manager.aio.pull("q", timeout=5)
            manager.push("q", 1)
            job = await manager.aio.pull("q", timeout=5)
            return job and job.data

    assert run(main) == 1


def calls() -> list[str]:
    return [name for name in vars(AsyncCalls) if not name.startswith("_")]


@pytest.mark.parametrize("name", calls())
def test_each_call_takes_what_the_managers_own_takes(name: str) -> None:
    mine = inspect.signature(getattr(AsyncCalls, name))
    own = inspect.signature(getattr(QueueManager, name))
    if name == "push":  # which spells out two of the options
        assert list(mine.parameters)[:4] == list(own.parameters)[:4]
        return
    assert [(p.name, p.kind) for p in mine.parameters.values()] == [
        (p.name, p.kind) for p in own.parameters.values()
    ]
    seconds = [
        {p.name: p.default for p in found.parameters.values() if p.name != "lock_duration"}
        for found in (mine, own)
    ]
    assert seconds[0] == seconds[1]
    assert inspect.iscoroutinefunction(getattr(AsyncCalls, name))


def test_what_is_read_or_given_back_may_be_awaited_too(manager: QueueManager) -> None:
    async def main() -> Any:
        aio = manager.aio
        added = await aio.push("q", 1, custom_id="one")
        job = await aio.pull("q", owner="me")
        assert job is not None
        assert await aio.get_state(job) == "active"
        assert await aio.release(job)
        job = await aio.pull("q", owner="me")
        assert await aio.release_owner("me") == 1
        job = await aio.pull("q")
        await aio.ack(job, [2])
        found = await aio.get_job(queue="q", custom_id="one")
        return found == added, await aio.get_result(added.id), await aio.get_job("gone")

    assert run(main) == (True, [2], None)


# -- events ------------------------------------------------------------------------------------


def test_async_for_sees_every_event_in_order_and_ends_with_close(manager: QueueManager) -> None:
    async def main() -> Any:
        seen = []
        events = QueueEvents("q", manager)
        reader = events.__aiter__()

        async def read() -> None:
            async for event in reader:
                seen.append((event.type, event.sequence))

        reading = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        job = await manager.aio.push("q")
        manager.push("other")
        held = await manager.aio.pull("q")
        assert held is not None
        await manager.aio.ack(held)
        await job
        while len(seen) < 4:
            await asyncio.sleep(0.002)
        events.close()
        await reading
        return seen

    assert run(main)[-4:] == [("pushed", 2), ("active", 3), ("completed", 4), ("empty", 5)]


def test_closing_the_manager_ends_async_for(manager: QueueManager) -> None:
    async def main() -> int:
        count = 0
        reader = QueueEvents(manager=manager).__aiter__()
        manager.push("q")
        closing = asyncio.create_task(asyncio.to_thread(manager.close))
        async for _ in reader:
            count += 1
        await closing
        return count

    assert run(main) == 2


def test_a_job_awaited_in_many_tasks_answers_them_all(manager: QueueManager) -> None:
    queue = Queue("q", manager)

    async def work(job: Job) -> int:
        await asyncio.sleep(0.01)
        return 7

    async def main() -> Any:
        async with Worker(queue, work):
            job = await manager.aio.push("q")
            return await asyncio.gather(*(manager.aio.wait_for(job) for _ in range(50)))

    assert run(main) == [7] * 50
