"""The first call after an exception in a critical section makes the shard's deferred calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bunqueue_py import Ack, Deduplication, Job, JobSpec, ManagerConfig, QueueManager
from bunqueue_py.ops.query import check
from bunqueue_py.shard.shard import BROKEN
from bunqueue_py.testing import VirtualClock

Verb = Callable[[QueueManager, Job], Any]

PUSHES: dict[str, Verb] = {
    "push": lambda manager, held: manager.push("q", 2),
    "push with options": lambda manager, held: manager.push("q", 2, priority=3, delay=1),
    "push with a custom id": lambda manager, held: manager.push("q", 2, custom_id="mine"),
    "push with a custom id that is taken": lambda manager, held: manager.push(
        "q", 2, custom_id="taken"
    ),
    "push with a key": lambda manager, held: manager.push(
        "q", 2, deduplication=Deduplication("k", 10)
    ),
    "push with a held key": lambda manager, held: manager.push(
        "q", 2, deduplication=Deduplication("k", 10, hold="ttl")
    ),
    "push_batch": lambda manager, held: manager.push_batch("q", [JobSpec("a", custom_id="b")]),
}
OTHERS: dict[str, Verb] = {
    "pull": lambda manager, held: manager.pull("q"),
    "pull_batch": lambda manager, held: manager.pull_batch("q", 2),
    "ack": lambda manager, held: manager.ack(held),
    "ack_batch": lambda manager, held: manager.ack_batch([Ack(held)]),
    "fail": lambda manager, held: manager.fail(held, "broken"),
}


@pytest.fixture
def manager() -> Iterator[QueueManager]:
    config = ManagerConfig(shards=1)
    with QueueManager(clock=VirtualClock(), background=False, config=config) as opened:
        yield opened
        check(opened._state)


@pytest.mark.parametrize("events", [False, True], ids=["nobody listens", "somebody listens"])
@pytest.mark.parametrize("verb", [*PUSHES, *OTHERS])
def test_a_verb_that_had_to_rebuild_an_interrupted_shard_makes_what_was_deferred(
    manager: QueueManager, verb: str, events: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if events:
        manager.events.subscribe(lambda event: None)
    manager.push("q", "first")
    held = manager.pull("q")
    assert held is not None
    manager.push("q", "second", custom_id="taken")
    shard = manager._state.queues["q"].shard
    calls: list[str] = []
    shard.after.append(lambda: calls.append("deferred"))
    shard.gate = BROKEN
    {**PUSHES, **OTHERS}[verb](manager, held)
    assert calls == ["deferred"]
    assert "was rebuilt from its records" in caplog.text
    assert not shard.after
    assert not shard.gate
