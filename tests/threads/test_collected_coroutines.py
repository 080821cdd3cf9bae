"""Coroutines that are collected with a loop that was closed under them.

The collector may be at work in the middle of a call of ours, under the shard's lock, and close them
there: they may take no lock, and whoever uses the shard next does what they leave undone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from bunqueue_py import QueueManager
from bunqueue_py.ops.query import check
from bunqueue_py.shard.shard import Shard

Call = Callable[[QueueManager], Coroutine[Any, Any, Any]]


@pytest.fixture
def manager() -> Iterator[QueueManager]:
    with QueueManager() as manager:
        yield manager


def shard_of(manager: QueueManager) -> Shard:
    return manager._state.queues["q"].shard


def collected(manager: QueueManager, call: Call) -> None:
    """Has the coroutine wait, closes its loop, and the coroutine under the shard's lock."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)

    async def begin() -> asyncio.Task[Any]:
        task = asyncio.ensure_future(call(manager))
        await asyncio.sleep(0)
        return task

    task = loop.run_until_complete(begin())
    assert not task.done()
    loop.close()
    with shard_of(manager).lock:
        task.get_coro().close()  # type: ignore[union-attr]


def test_one_that_pulls_leaves_the_line_to_the_others(manager: QueueManager) -> None:
    manager.pull("q")
    collected(manager, lambda manager: manager.aio.pull("q", timeout=60))
    manager.push("q", 1)
    assert not manager._state.queues["q"].waiters.line
    job = manager.pull("q")
    assert job is not None
    assert job.data == 1
    check(manager._state)


def test_one_that_waits_for_a_job_is_told_of_nothing_any_more(manager: QueueManager) -> None:
    job = manager.push("q", 1)

    async def result(manager: QueueManager) -> Any:
        return await manager.aio.wait_for(job)

    collected(manager, result)
    manager.push("q", 2)
    assert not shard_of(manager).watched
    manager.ack(manager.pull("q"), "done")  # type: ignore[arg-type]
    assert job.result() == "done"
    check(manager._state)
