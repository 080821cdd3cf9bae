"""The end of a run and the beginning of the next, which waited for it, in one."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bunqueue_py import FlowNode, FlowProducer, Job, Queue, QueueManager, Repeat
from bunqueue_py.ops.query import check
from bunqueue_py.testing import VirtualClock

LEASE = 30_000


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False) as opened:
        yield opened
        check(opened._state)


def a_chain(manager: QueueManager, *options: dict[str, Any]) -> list[Job]:
    """A chain of queue q; the options are those of its jobs."""
    nodes = [FlowNode("q", f"n{i}", **each) for i, each in enumerate(options)]
    return FlowProducer(manager).chain(nodes)


def end(manager: QueueManager, job: Job, result: bytes | None = None, handle: Any = None) -> Any:
    """Ends that run as a worker does; returns the outcome, and what it has taken."""
    backend = manager.backend
    outcome, problem, following = backend.go_on(
        job.id, job.token, result, LEASE, "w", handle or backend.wait_handle()
    )
    assert problem is None
    return outcome, following


def stands_in_line(manager: QueueManager, queue: str = "q") -> Any:
    """A waiter of a thread that waits for a job of that queue."""
    handle = manager.backend.wait_handle()
    state = manager._state.queues[queue]
    with state.lock:
        state.waiters.join(handle, first=False)  # type: ignore[arg-type]
    return handle


def test_who_ends_a_link_has_the_next_one_begun_with_what_the_first_returned(
    manager: QueueManager,
) -> None:
    heard: list[tuple[str, str]] = []
    a_chain(manager, {}, {})
    manager.events.subscribe(lambda event: heard.append((event.type, str(event.job_id))))
    first = manager.pull("q")
    assert first is not None
    outcome, second = end(manager, first, manager.backend.encode("of the first"))
    assert outcome.applied
    assert second.name == "n1"
    assert second.state == "active"
    assert second.started_at == manager.get_job(second.id).started_at is not None  # type: ignore[union-attr]
    assert second.children_values() == {first.id: "of the first"}
    assert [step.state for step in second.timeline] == ["waiting-children", "unblocked", "active"]
    assert manager.ack(second, 2).applied
    manager.run_pending()
    assert heard == [
        ("active", first.id),
        ("completed", first.id),
        ("unblocked", second.id),
        ("active", second.id),
        ("completed", second.id),
        ("empty", "None"),
    ]


def test_nobody_is_woken_for_a_job_that_is_taken_at_once(manager: QueueManager) -> None:
    a_chain(manager, {}, {})
    first = manager.pull("q")
    assert first is not None
    idle = stands_in_line(manager)
    assert end(manager, first)[1] is not None
    assert not idle.woken


@pytest.mark.parametrize(
    ("spoil", "ready"),
    [
        (lambda m: m.push("q", name="other"), 2),
        (lambda m: m.push("q", name="other", priority=5), 2),
        (lambda m: m.push("q", name="other", group="g"), 2),
        (lambda m: Queue("q", m).limits.set_concurrency(5), 1),
        (lambda m: Queue("q", m).limits.set_rate_limit(9, per=60), 1),
    ],
)
def test_where_more_is_to_be_judged_the_next_one_is_left_to_whoever_pulls(
    manager: QueueManager, spoil: Callable[[QueueManager], Any], ready: int
) -> None:
    a_chain(manager, {}, {})
    first = manager.pull("q")
    assert first is not None
    spoil(manager)
    idle = stands_in_line(manager)
    outcome, following = end(manager, first)
    assert outcome.applied
    assert following is None
    assert idle.woken
    assert len(Queue("q", manager)) == ready


def test_a_paused_queue_hands_nothing_out(manager: QueueManager) -> None:
    a_chain(manager, {}, {})
    first = manager.pull("q")
    assert first is not None
    Queue("q", manager).pause()
    assert end(manager, first)[1] is None
    assert manager.counts("q").paused == 1


def test_a_cancelled_waiter_takes_nothing(manager: QueueManager) -> None:
    a_chain(manager, {}, {})
    first = manager.pull("q")
    assert first is not None
    mine, other = manager.backend.wait_handle(), stands_in_line(manager)
    manager.backend.cancel_wait("q", mine)
    assert end(manager, first, handle=mine)[1] is None
    assert other.woken
    assert manager.counts("q").waiting == 1


def test_of_several_that_are_let_go_none_is_taken_and_as_many_are_woken(
    manager: QueueManager,
) -> None:
    first = manager.push("q", name="first")
    for _ in range(2):
        manager.push("q", depends_on=[first])
    held = manager.pull("q")
    assert held is not None
    idle = [stands_in_line(manager) for _ in range(3)]
    assert end(manager, held)[1] is None
    assert [waiter.woken for waiter in idle] == [True, True, False]


def test_one_that_has_another_priority_is_left_to_whoever_pulls(manager: QueueManager) -> None:
    a_chain(manager, {}, {"priority": 3})
    first = manager.pull("q")
    assert first is not None
    idle = stands_in_line(manager)
    assert end(manager, first)[1] is None
    assert idle.woken
    assert manager.counts("q").prioritized == 1


def test_who_waits_learns_of_the_moment_of_one_that_is_let_go_to_be_delayed(
    manager: QueueManager,
) -> None:
    first = manager.push("q", name="first")
    manager.push("q", name="now", depends_on=[first])
    manager.push("q", name="later", depends_on=[first], delay=60)
    held = manager.pull("q")
    assert held is not None
    idle = stands_in_line(manager)
    taken = end(manager, held)[1]
    assert taken.name == "now"
    assert idle.woken  # to take the timer


def test_what_is_due_by_now_goes_before_the_next_link(
    manager: QueueManager, clock: VirtualClock
) -> None:
    a_chain(manager, {}, {})
    first = manager.pull("q")
    assert first is not None
    manager.push("q", name="due", delay=5, priority=1)
    clock.advance(seconds=5)
    assert end(manager, first)[1] is None
    found = manager.pull("q")
    assert found is not None
    assert found.name == "due"


def test_a_delayed_job_of_the_queue_keeps_no_chain_from_going_on(manager: QueueManager) -> None:
    manager.push("q", name="later", delay=60)
    a_chain(manager, {}, {})
    first = manager.pull("q")
    assert first is not None
    assert end(manager, first)[1].name == "n1"


def test_one_with_a_ttl_is_judged_by_whoever_pulls(
    manager: QueueManager, clock: VirtualClock
) -> None:
    first, last = a_chain(manager, {}, {"ttl": 5})
    held = manager.pull("q")
    assert held is not None
    clock.advance(seconds=6)
    assert end(manager, held)[1] is None
    assert manager.pull("q") is None
    assert manager.get_job(last.id).failed_reason == "ttl_expired"  # type: ignore[union-attr]
    assert first.refresh().state == "completed"


def test_a_next_one_of_another_queue_wakes_who_waits_there(manager: QueueManager) -> None:
    FlowProducer(manager).chain([FlowNode("q", "a"), FlowNode("r", "b")])
    held = manager.pull("q")
    assert held is not None
    idle = stands_in_line(manager, "r")
    assert end(manager, held)[1] is None
    assert idle.woken


def test_the_timeout_of_the_next_one_is_counted_from_its_start(
    manager: QueueManager, clock: VirtualClock
) -> None:
    _, last = a_chain(manager, {}, {"timeout": 5, "attempts": 1})
    held = manager.pull("q")
    assert held is not None
    assert end(manager, held)[1].id == last.id
    clock.advance(seconds=6)
    manager.run_pending()
    assert manager.get_job(last.id).failed_reason == "timeout"  # type: ignore[union-attr]


def test_a_run_that_was_lost_takes_nothing(manager: QueueManager, clock: VirtualClock) -> None:
    a_chain(manager, {"attempts": 1}, {})
    held = manager.pull("q", lock_duration=1)
    assert held is not None
    assert manager.release(held)
    outcome, following = end(manager, held)
    assert (outcome.applied, outcome.reason, following) == (False, "lock_lost", None)
    manager.remove(held.id)
    outcome, following = end(manager, held)
    assert (outcome.applied, outcome.reason, following) == (False, "gone", None)


def test_a_job_that_repeats_plans_its_next_run(manager: QueueManager) -> None:
    manager.push("q", name="again", repeat=Repeat(every=60))
    held = manager.pull("q")
    if held is None:
        manager._state.clock.advance(seconds=60)  # type: ignore[attr-defined]
        held = manager.pull("q")
    assert held is not None
    outcome, following = end(manager, held)
    assert outcome.applied
    assert following is None
    assert manager.counts("q").delayed == 1
