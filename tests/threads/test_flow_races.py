"""Jobs that wait for jobs, on threads: who begins to wait while the other ends, and last children
that end at once."""

import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bunqueue_py import (
    FlowNode,
    FlowProducer,
    Job,
    ManagerConfig,
    QueueManager,
    WaitForChildren,
    Worker,
)
from bunqueue_py.ops.query import check

PATIENCE = 60


@pytest.fixture(autouse=True)
def switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def together(*calls: Callable[[], Any]) -> None:
    """Runs them at once, each on a thread."""
    barrier = threading.Barrier(len(calls))
    errors: list[BaseException] = []

    def run(call: Callable[[], Any]) -> None:
        try:
            barrier.wait(PATIENCE)
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def race_of_adding(rounds: int) -> None:
    with QueueManager(config=ManagerConfig(shards=4)) as manager:
        for n in range(rounds):
            first = manager.push("a", name="first", remove_on_complete=n % 2 == 0)
            held = manager.pull("a")
            assert held is not None
            added: list[Any] = []

            def end(held: Any = held, n: int = n) -> None:
                manager.ack(held, n)

            def add(first: Any = first, added: list[Any] = added) -> None:
                added.append(manager.push("b", depends_on=[first]))

            together(end, add)
            job = manager.pull("b", timeout=PATIENCE)
            assert job is not None
            assert job == added[0]
            assert job.children_values() == {first.id: n}
            manager.ack(job)
        check(manager._state)
        assert not manager._state.dependencies.dependents
        assert not manager._state.proofs.pinned


def race_of_ending(flows: int) -> None:
    with QueueManager(config=ManagerConfig(shards=4)) as manager:
        released: list[str] = []
        manager.events.subscribe(
            lambda event: released.append(str(event.job_id)), types=["unblocked"]
        )
        parents = []
        for n in range(flows):
            children = 2 + n % 15 if n % 8 == 0 else 2
            tree = FlowProducer(manager).fan_in(
                [FlowNode(f"c{i % 4}", "child") for i in range(children)], FlowNode("p", "parent")
            )
            held = [manager.pull(f"c{i % 4}") for i in range(children)]
            together(*(lambda job=job: manager.ack(job) for job in held))
            parents.append(tree.job.id)
            job = manager.pull("p", timeout=PATIENCE)
            assert job is not None
            assert job.id == tree.job.id
            manager.ack(job)
        check(manager._state)
        assert manager.pull("p") is None
    assert released == parents  # once each, and no other


def test_a_job_that_is_added_while_its_dependency_completes_is_let_go() -> None:
    """B109."""
    race_of_adding(40)


def test_last_children_that_end_at_once_let_the_parent_go_once() -> None:
    """B113."""
    race_of_ending(30)


@pytest.mark.slow
def test_a_job_that_is_added_while_its_dependency_completes_is_let_go_at_length(
    slow_rounds: Callable[[int, int], int],
) -> None:
    """B109: 1,000 times."""
    race_of_adding(slow_rounds(200, 1_000))


@pytest.mark.slow
def test_last_children_that_end_at_once_let_the_parent_go_once_at_length(
    slow_rounds: Callable[[int, int], int],
) -> None:
    """B113: 2,000 flows of 2 to 16 children."""
    race_of_ending(slow_rounds(200, 2_000))


def test_failures_that_meet_on_threads_end_the_parent_once() -> None:
    """B112, B113."""
    with QueueManager(config=ManagerConfig(shards=4)) as manager:
        for _ in range(15):
            tree = FlowProducer(manager).fan_in(
                [FlowNode(f"c{i}", "child") for i in range(4)], FlowNode("p", "parent")
            )
            after = manager.push("after", depends_on=[tree.job])
            held = [manager.pull(f"c{i}") for i in range(4)]
            together(*(lambda job=job: manager.fail(job, "no", unrecoverable=True) for job in held))
            for job in (tree.job, after):
                with pytest.raises(Exception, match="dependency_failed"):
                    job.result(timeout=PATIENCE)
        check(manager._state)


@pytest.mark.slow
def test_a_parent_of_10_000_and_a_chain_of_5_000_run_in_linear_time_with_pages_of_results() -> None:
    """B118."""
    with QueueManager() as manager:
        flows = FlowProducer(manager)
        wide = flows.fan_in([FlowNode("q", "c") for _ in range(9_999)], FlowNode("end", "p"))
        chain = flows.chain([FlowNode("q", "k") for _ in range(5_000)])
        with Worker("q", lambda job: "x" * 1_000, manager=manager):
            chain[-1].result(timeout=PATIENCE)
            manager.wait_until_empty("q", timeout=PATIENCE)
        parent = manager.pull("end", timeout=PATIENCE)
        assert parent == wide.job
        found: dict[str, Any] = {}
        for offset in range(0, 10_000, 1_000):
            found |= wide.job.children_values(offset, 1_000)
        assert len(found) == 9_999
        assert set(found.values()) == {"x" * 1_000}
        check(manager._state)


def play_flows(rng: random.Random) -> None:
    """Chains, trees and step jobs come in on two threads while workers run them."""
    with QueueManager(config=ManagerConfig(shards=rng.choice((1, 4)))) as manager:
        flows = FlowProducer(manager)
        added: list[str] = []

        def handler(job: Job) -> str:
            if job.name == "step" and not job.children_ids:
                for _ in range(rng.randint(1, 3)):
                    queue = rng.choice("ab")
                    job.add_child(
                        FlowNode(queue, "leaf", on_failure="ignore_dependency", attempts=1)
                    )
                raise WaitForChildren()
            if job.name == "leaf" and rng.random() < 0.3:
                raise ValueError("a leaf may fail")
            return job.name

        def produce() -> None:
            for _ in range(6):
                length = rng.randint(2, 12)
                chain = [FlowNode(rng.choice("aab"), rng.choice("xxy")) for _ in range(length)]
                added.extend(job.id for job in flows.chain(chain))
                children = [FlowNode(rng.choice("ab"), "x") for _ in range(rng.randint(0, 4))]
                tree = flows.add(FlowNode(rng.choice("ab"), "step", children=children))
                added.append(tree.job.id)

        slots = rng.randint(1, 3)
        with (
            Worker("a", handler, manager=manager, concurrency=slots),
            Worker("b", handler, manager=manager, concurrency=slots),
        ):
            together(produce, produce)
            for job_id in added:
                assert manager.wait_for(job_id, timeout=PATIENCE) in ("x", "y", "step")
        check(manager._state)


@pytest.mark.slow
def test_whatever_flows_come_in_workers_run_them_to_their_end(
    slow_rounds: Callable[[int, int], int],
) -> None:
    # a result that was just being let go had seemed to be evicted
    for seed in range(slow_rounds(20, 1_000)):
        play_flows(random.Random(seed))
