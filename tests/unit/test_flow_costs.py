"""What ties between jobs cost, counted and not timed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import FlowNode, FlowProducer, QueueManager
from bunqueue_py.ops import flow
from bunqueue_py.testing import VirtualClock


def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Counts the jobs that are looked at for another's end."""
    counted = 0
    tell = flow._tell

    def counting(*arguments: Any) -> None:
        nonlocal counted
        counted += 1
        tell(*arguments)

    monkeypatch.setattr(flow, "_tell", counting)
    return lambda: counted


def test_one_completion_touches_its_own_dependents_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        blocker = manager.push("blocked", delay=3600)
        flows = FlowProducer(manager)
        flows.add_bulk([FlowNode("blocked", "x", depends_on=[blocker]) for _ in range(500)])
        first = manager.push("q")
        manager.push("q", depends_on=[first])
        counted = looks(monkeypatch)
        job = manager.pull("q")
        assert job is not None
        manager.ack(job)
        assert counted() == 1


def test_a_chain_needs_no_pass_of_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        FlowProducer(manager).chain([FlowNode("q", "x") for _ in range(300)])
        counted = looks(monkeypatch)
        for _ in range(300):
            job = manager.pull("q")
            assert job is not None
            manager.ack(job)
        assert counted() == 299


def test_children_that_complete_write_no_row_of_their_parent(tmp_path: Path) -> None:
    clock = VirtualClock()
    with QueueManager(tmp_path / "jobs.db", clock=clock, background=False) as manager:
        FlowProducer(manager).fan_in([FlowNode("q", "x") for _ in range(300)], FlowNode("p", "p"))
        manager.flush()
        before = manager._state.storage.health().rows_written  # type: ignore[union-attr]
        for _ in range(299):
            job = manager.pull("q")
            assert job is not None
            manager.ack(job)
            manager.flush()
        written = manager._state.storage.health().rows_written - before  # type: ignore[union-attr]
        assert written <= 299 * 2


def test_a_flow_of_10_000_is_one_transaction_on_disk(tmp_path: Path) -> None:
    clock = VirtualClock()
    with QueueManager(tmp_path / "jobs.db", clock=clock, background=False) as manager:
        storage = manager._state.storage
        assert storage is not None
        before = storage.health().commits
        nodes = [FlowNode(f"q{n % 3}", "x") for n in range(2_000)]
        tree = FlowProducer(manager).fan_in(nodes, FlowNode("p", "p"))
        manager.flush()
        assert storage.health().commits == before + 1
    with QueueManager(tmp_path / "jobs.db", clock=clock, background=False) as manager:
        found = manager.get_job(tree.job.id)
        assert found is not None
        assert found.children_ids == tree.job.children_ids
        assert manager.counts().total == 2_001
