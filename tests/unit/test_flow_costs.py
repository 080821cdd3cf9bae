"""What ties between jobs cost, counted and not timed."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import Ack, FlowNode, FlowProducer, ManagerConfig, QueueManager
from bunqueue_py.ops import finish, flow, unblock
from bunqueue_py.ops.push import find_queue
from bunqueue_py.testing import VirtualClock


def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Counts the jobs that are looked at for another's completion."""
    counted = 0
    settle = unblock.settle_met

    def counting(state: Any, job_id: str, dependents: Any, *rest: Any) -> None:
        nonlocal counted
        counted += len(dependents)
        settle(state, job_id, dependents, *rest)

    for module in (flow, finish):
        monkeypatch.setattr(module, "settle_met", counting)
    return lambda: counted


@pytest.mark.parametrize("queue", ["q", "elsewhere"])
def test_one_completion_touches_its_own_dependents_alone(
    monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    with two_shards() as manager:
        blocker = manager.push("blocked", delay=3600)
        flows = FlowProducer(manager)
        flows.add_bulk([FlowNode("blocked", "x", depends_on=[blocker]) for _ in range(500)])
        first = manager.push("q")
        manager.push(queue, depends_on=[first])
        counted = looks(monkeypatch)
        job = manager.pull("q")
        assert job is not None
        manager.ack(job)
        assert counted() == 1


@pytest.mark.parametrize("queues", [("q",), ("q", "elsewhere")])
def test_a_chain_needs_no_pass_of_the_scheduler(
    monkeypatch: pytest.MonkeyPatch, queues: tuple[str, ...]
) -> None:
    with two_shards() as manager:
        FlowProducer(manager).chain([FlowNode(queues[n % len(queues)], "x") for n in range(300)])
        counted = looks(monkeypatch)
        for n in range(300):
            job = manager.pull(queues[n % len(queues)])
            assert job is not None
            manager.ack(job)
        assert counted() == 299


def test_completions_that_are_told_of_together_take_one_hold_of_the_parents_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with two_shards() as manager:
        nodes = [FlowNode("q", "x") for _ in range(200)]
        parent = FlowProducer(manager).fan_in(nodes, FlowNode("elsewhere", "p"))
        holds = 0
        settle = flow._settle_met

        def counting(*arguments: Any) -> None:
            nonlocal holds
            holds += 1
            settle(*arguments)

        monkeypatch.setattr(flow, "_settle_met", counting)
        manager.ack_batch([Ack(job) for job in manager.pull_batch("q", 200)])
        assert parent.job.refresh().state == "waiting"
        assert holds == 4


def test_many_dependents_of_one_job_are_told_without_holding_its_lock_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with two_shards() as manager:
        first = manager.push("q")
        FlowProducer(manager).add_bulk([FlowNode("q", "x", depends_on=[first]) for _ in range(200)])
        most = 0
        settle = flow._settle_met

        def counting(state: Any, shard: Any, met: Any) -> None:
            nonlocal most
            most = max(most, len(met))
            settle(state, shard, met)

        monkeypatch.setattr(flow, "_settle_met", counting)
        job = manager.pull("q")
        assert job is not None
        manager.ack(job)
        assert manager.counts("q").waiting == 200
        assert 0 < most <= 64


def two_shards() -> QueueManager:
    """Of which "q" and "elsewhere" are not in the same."""
    manager = QueueManager(clock=VirtualClock(), background=False, config=ManagerConfig(shards=2))
    shards = [find_queue(manager._state, name).shard for name in ("q", "elsewhere")]
    assert shards[0] is not shards[1]
    return manager


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


def test_a_flow_is_one_transaction_on_disk_however_large(tmp_path: Path) -> None:
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


def steps(call: Callable[[], Any]) -> int:
    """How many steps the interpreter takes for the call."""
    count = 0

    def step(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def run_all(manager: QueueManager) -> None:
    while (job := manager.pull("q")) is not None:
        manager.ack(job)


def a_job_more(make: Callable[[int], int]) -> float:
    """The steps for one job more."""
    return (make(35) - make(15)) / 20


def test_a_link_of_a_chain_takes_less_than_twice_the_steps_of_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BUNQUEUE_CHECK_LOCKS", "0")

    def chain(n: int) -> int:
        with two_shards() as manager:
            FlowProducer(manager).chain([FlowNode("q", "x") for _ in range(n)])
            return steps(lambda: run_all(manager))

    def apart(n: int) -> int:
        with two_shards() as manager:
            manager.push_batch("q", [("x", None)] * n)
            return steps(lambda: run_all(manager))

    def gone_on_with(n: int) -> int:
        with two_shards() as manager:
            FlowProducer(manager).chain([FlowNode("q", "x") for _ in range(n)])
            backend = manager.backend
            handle = backend.wait_handle()

            def go_from_link_to_link() -> None:
                job = manager.pull("q")
                while job is not None:
                    _, problem, job = backend.go_on(job.id, job.token, None, 30_000, "w", handle)
                    assert problem is None

            taken = steps(go_from_link_to_link)
            assert manager.counts("q").completed == n
            return taken

    a_job_more(apart)  # the interpreter specialises
    alone = a_job_more(apart)
    assert a_job_more(chain) < 1.75 * alone
    # as a worker's thread does it
    assert a_job_more(gone_on_with) < 1.6 * alone


def test_a_child_takes_less_than_twice_the_steps_of_a_job_of_a_batch_from_adding_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BUNQUEUE_CHECK_LOCKS", "0")

    def wide(n: int) -> int:
        def call() -> None:
            nodes = [FlowNode("q", "x") for _ in range(n)]
            FlowProducer(manager).fan_in(nodes, FlowNode("q", "p"))
            run_all(manager)

        with two_shards() as manager:
            return steps(call)

    def batch(n: int) -> int:
        def call() -> None:
            manager.push_batch("q", [("x", None)] * n)
            run_all(manager)

        with two_shards() as manager:
            return steps(call)

    assert a_job_more(wide) < 1.6 * a_job_more(batch)
