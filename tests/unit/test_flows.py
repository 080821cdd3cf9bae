"""Flows: trees of jobs over several queues, what a child's failure does, children added later."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    Deduplication,
    FlowError,
    FlowNode,
    FlowProducer,
    FlowResult,
    GroupFullError,
    Job,
    JobNotFoundError,
    JobStateError,
    LockError,
    ManagerConfig,
    Queue,
    QueueManager,
    ResultExpiredError,
    SerializationError,
    ValidationError,
    WaitForChildren,
    Worker,
)
from bunqueue_py.ops.query import check
from bunqueue_py.testing import Harness, VirtualClock

POLICIES = [
    "fail_parent",
    "continue_parent",
    "ignore_dependency",
    "remove_dependency",
    "wait",
]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False) as opened:
        yield opened
        if not opened._state.shards.shards[0].gate:
            check(opened._state)


@pytest.fixture
def flows(manager: QueueManager) -> FlowProducer:
    return FlowProducer(manager)


def state(job: Job) -> str:
    return str(job.refresh().state)


def run(manager: QueueManager, queue: str, result: Any = None) -> Job:
    job = manager.pull(queue)
    assert job is not None, manager.counts()
    assert manager.ack(job, result).applied
    return job


def kill(manager: QueueManager, queue: str, error: str = "boom") -> Job:
    job = manager.pull(queue)
    assert job is not None, manager.counts()
    manager.fail(job, error, unrecoverable=True)
    return job


def books(manager: QueueManager) -> object:
    check(manager._state)
    dependencies = manager._state.dependencies
    return sorted(manager._state.index), manager.counts(), sorted(dependencies.dependents)


# -- trees -----------------------------------------------------------------------------------------


def test_a_tree_runs_from_its_leaves_and_each_parent_has_the_results_of_its_children(
    manager: QueueManager, flows: FlowProducer
) -> None:
    tree = flows.add(
        FlowNode(
            "books",
            "bind",
            {"title": "Ada"},
            children=[
                FlowNode("pages", "one", children=[FlowNode("inks", "black")]),
                FlowNode("pages", "two", priority=3),
            ],
        )
    )
    book, one, two = tree.job, tree.children[0].job, tree.children[1].job
    ink = tree.children[0].children[0].job
    assert (book.children_ids, one.children_ids, ink.children_ids) == (
        (one.id, two.id),
        (ink.id,),
        (),
    )
    assert (book.parent_id, one.parent_id, ink.parent_id) == (None, book.id, one.id)
    assert [str(job.state) for job in (book, one, two, ink)] == [
        "waiting-children",
        "waiting-children",
        "prioritized",
        "waiting",
    ]
    assert book.data == {"title": "Ada"}
    assert book.unprocessed_children() == [one.id, two.id]
    assert run(manager, "pages", 2) == two
    run(manager, "inks", "ink")
    assert run(manager, "pages", 1) == one
    assert one.children_values() == {ink.id: "ink"}
    assert book.children_values() == {one.id: 1, two.id: 2}
    assert (state(book), book.unprocessed_children()) == ("waiting", [])


@pytest.mark.parametrize("nested", [False, True])
def test_a_parent_without_children_is_ready_at_once(
    manager: QueueManager, flows: FlowProducer, nested: bool
) -> None:
    """B110: at the top, and further down."""
    node = FlowNode("q", "bare", children=[])
    tree = flows.add(FlowNode("q", "top", children=[node]) if nested else node)
    assert run(manager, "q").name == "bare"
    assert state(tree.job) == ("waiting" if nested else "completed")


def test_flows_are_added_in_bulk_in_chains_and_fanned_in(
    manager: QueueManager, flows: FlowProducer
) -> None:
    first, second = flows.add_bulk(
        [FlowNode("q", "a", children=[FlowNode("q", "b")]), FlowNode("q", "c")]
    )
    assert [first.children[0].job.name, second.job.name] == ["b", "c"]
    chain = flows.chain([FlowNode(f"q{n % 2}", f"k{n}") for n in range(4)])
    assert [job.depends_on for job in chain] == [(), *((job.id,) for job in chain[:3])]
    for n in range(4):
        run(manager, f"q{n % 2}", n)
    assert chain[3].children_values() == {chain[2].id: 2}
    fan = flows.fan_in([FlowNode("q", f"f{n}") for n in range(3)], FlowNode("q", "end", attempts=9))
    assert (fan.job.name, fan.job.max_attempts, len(fan.children)) == ("end", 9, 3)
    assert flows.add_bulk([]) == []
    assert flows.chain([]) == []
    assert manager.counts().total == 11


def test_a_chain_breaks_where_a_job_of_it_fails_as_that_one_says(
    manager: QueueManager, flows: FlowProducer
) -> None:
    hard = flows.chain([FlowNode("a", "1"), FlowNode("a", "2"), FlowNode("a", "3")])
    kill(manager, "a")
    assert [state(job) for job in hard] == ["failed"] * 3
    soft = flows.chain(
        [FlowNode("a", "1", on_failure="ignore_dependency"), FlowNode("a", "2"), FlowNode("a", "3")]
    )
    kill(manager, "a")
    assert [state(job) for job in soft] == ["failed", "waiting", "waiting-children"]


def test_a_flow_may_depend_on_jobs_that_are_there(
    manager: QueueManager, flows: FlowProducer
) -> None:
    before = manager.push("q", name="before")
    tree = flows.add(FlowNode("r", "top", children=[FlowNode("r", "leaf", depends_on=[before])]))
    assert manager.pull("r") is None
    run(manager, "q")
    assert run(manager, "r").name == "leaf"
    assert state(tree.job) == "waiting"


# -- what a failure does ---------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy_does_what_it_says(
    manager: QueueManager, flows: FlowProducer, policy: Any
) -> None:
    top = flows.add(
        FlowNode(
            "top",
            "top",
            children=[
                FlowNode(
                    "mid",
                    "mid",
                    children=[
                        FlowNode("bad", "bad", on_failure=policy),
                        FlowNode("good", "good"),
                    ],
                )
            ],
        )
    )
    mid, bad, good = (
        top.children[0].job,
        *(child.job for child in top.children[0].children),
    )
    kill(manager, "bad", "torn page")
    after = {
        "fail_parent": ("failed", "failed"),
        "continue_parent": ("waiting", "waiting-children"),
        "ignore_dependency": ("waiting-children", "waiting-children"),
        "remove_dependency": ("waiting-children", "waiting-children"),
        "wait": ("waiting-children", "waiting-children"),
    }[policy]
    assert (state(mid), state(top.job)) == after
    failed = {bad.id: "torn page"}
    assert mid.failed_children() == (failed if policy in [*POLICIES[:2], "wait"] else {})
    assert mid.ignored_failures() == (failed if policy == "ignore_dependency" else {})
    assert (bad.id in mid.refresh().children_ids) is (policy != "remove_dependency")
    if policy == "fail_parent":
        assert bad.id in str(mid.error)
        assert str(top.job.error).startswith(
            f"child {mid.id} of queue 'mid' failed: child {bad.id}"
        )
        assert str(top.job.error).endswith("torn page")
    assert state(good) == "waiting"  # siblings go on
    run(manager, "good", "ok")
    if policy == "wait":
        assert state(mid) == "waiting-children"
        bad.retry()
        run(manager, "bad", "mended")
        assert mid.children_values() == {bad.id: "mended", good.id: "ok"}
    elif policy != "fail_parent":
        assert mid.children_values() == {good.id: "ok"}
    if policy != "fail_parent":
        run(manager, "mid")
        assert state(top.job) == "waiting"


def test_a_parent_retried_after_several_children_failed_goes_on_because_of_the_first(
    manager: QueueManager, flows: FlowProducer
) -> None:
    # as if the first had failed while it waited: from then on it waits for none of the others
    policies: list[Any] = ["continue_parent", "continue_parent", "remove_dependency"]
    top = flows.add(
        FlowNode("top", "top", children=[FlowNode("c", p, on_failure=p) for p in policies])
    )
    top.job.discard()
    children = [child.job for child in top.children]
    for child in children:
        child.discard()
    top.job.retry()
    assert state(top.job) == "waiting"
    assert top.job.refresh().children_ids == tuple(child.id for child in children)


def test_a_failed_parent_is_retried_when_its_child_is(
    manager: QueueManager, flows: FlowProducer
) -> None:
    """B134."""
    tree = flows.add(FlowNode("top", "top", children=[FlowNode("q", "a"), FlowNode("q", "b")]))
    a, b = (child.job for child in tree.children)
    kill(manager, "q")
    with pytest.raises(JobStateError, match=f"child {a.id} has failed; retry that first"):
        tree.job.retry()
    a.retry()
    tree.job.retry()
    assert state(tree.job) == "waiting-children"
    run(manager, "q"), run(manager, "q")
    assert state(tree.job) == "waiting"
    assert state(b) == "completed"
    run(manager, "top")
    tree.job.retry()  # one that has completed: its children still have
    assert state(tree.job) == "waiting"


def test_many_children_that_fail_at_once_fail_the_parent_once(
    manager: QueueManager, flows: FlowProducer
) -> None:
    seen = []
    manager.events.subscribe(seen.append, types=["failed", "unblocked"])
    tree = flows.add(FlowNode("top", "top", children=[FlowNode("q", str(n)) for n in range(20)]))
    for _ in range(20):
        kill(manager, "q")
    manager.run_pending()
    about = [event.type for event in seen if event.job_id == tree.job.id]
    assert about == ["failed"]


# -- all or nothing --------------------------------------------------------------------------------


def deep(levels: int) -> FlowNode:
    node = FlowNode("q", "leaf")
    for _ in range(levels - 1):
        node = FlowNode("q", "node", children=[node])
    return node


def cyclic() -> FlowNode:
    a, b, c = FlowNode("q", "a"), FlowNode("r", "b"), FlowNode("q", "c")
    a.children.append(b), b.children.append(c), c.children.append(a)
    return a


def shared() -> FlowNode:
    node = FlowNode("q", "twin")
    return FlowNode("q", "top", children=[node, FlowNode("r", "x", children=[node])])


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "a cycle": (cyclic, FlowError, "'a' -> 'b' -> 'c' -> 'a'"),
    "a shared node": (shared, FlowError, r"same FlowNode as node.children\[0\]"),
    "101 levels": (lambda: deep(101), FlowError, "at most 100 levels"),
    "10,001 nodes": (
        lambda: FlowNode("q", "top", children=[FlowNode("q", "x") for _ in range(10_000)]),
        FlowError,
        "at most 10,000 jobs",
    ),
    "an unknown dependency": (
        lambda: FlowNode("q", "top", children=[FlowNode("q", "x", depends_on=["nobody"])]),
        FlowError,
        r"node.children\[0\]: depends_on: there is no job 'nobody'",
    ),
    "a custom id twice": (
        lambda: FlowNode(
            "q",
            "t",
            children=[FlowNode("q", "x", custom_id="c"), FlowNode("q", "y", custom_id="c")],
        ),
        FlowError,
        "comes twice",
    ),
    "a custom id of a live job": (
        lambda: FlowNode("q", "t", children=[FlowNode("q", "x", custom_id="taken")]),
        FlowError,
        "live job",
    ),
    "a full group": (
        lambda: FlowNode(
            "q", "t", children=[FlowNode("q", "x", group="g", group_limit=2) for _ in range(3)]
        ),
        GroupFullError,
        r"children\[2\]",
    ),
    "data that cannot be kept": (
        lambda: FlowNode("q", "t", children=[FlowNode("r", "x", {"a": object()})]),
        SerializationError,
        r"node.children\[0\]",
    ),
    "an option out of bounds": (
        lambda: FlowNode("q", "t", children=[FlowNode("r", "x", attempts=0)]),
        ValidationError,
        r"node.children\[0\]: attempts",
    ),
    "a child that is none": (
        lambda: FlowNode("q", "t", children=["x"]),  # type: ignore[list-item]
        ValidationError,
        r"node.children\[0\] must be a FlowNode",
    ),
}


@pytest.mark.parametrize("what", sorted(BAD))
def test_a_flow_that_cannot_be_is_refused_whole(
    manager: QueueManager, flows: FlowProducer, what: str
) -> None:
    """B115, B104: nothing of it is left, in whatever queue."""
    manager.push("q", custom_id="taken")
    before = books(manager)
    make, kind, text = BAD[what]
    with pytest.raises(kind, match=text):
        flows.add(make())
    assert books(manager) == before


def test_what_is_wrong_in_one_of_several_flows_is_told_with_its_way_there(
    flows: FlowProducer,
) -> None:
    twin = FlowNode("q", "twin")
    trees = [
        FlowNode("q", "a", children=[FlowNode("q", "x"), twin]),
        FlowNode("q", "b", children=[FlowNode("q", "y", children=[twin])]),
    ]
    way = r"nodes\[1\].children\[0\].children\[0\]"
    with pytest.raises(FlowError, match=way + r" is the same FlowNode as nodes\[0\].children\[1\]"):
        flows.add_bulk(trees)
    with pytest.raises(FlowError, match=r"nodes\[1\] is the same FlowNode as nodes\[0\]"):
        flows.add_bulk([twin, twin])
    trees[1].children[0].children[0] = FlowNode("q", "z", priority=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match=way + ": priority"):
        flows.add_bulk(trees)


def test_what_children_share_is_not_changed_by_what_happens_to_one(
    manager: QueueManager, flows: FlowProducer
) -> None:
    tree = flows.fan_in([FlowNode("q", "x") for _ in range(4)], FlowNode("p", "p"))
    first, second, third, last = (child.job for child in tree.children)
    tree.job.remove_dependency(second)
    third.add_child(FlowNode("q", "below"))
    first.discard()
    assert second.refresh().parent_id is None
    assert third.refresh().children_ids
    assert first.refresh().timeline[-1].state == "failed"
    for job in (first, third, last):
        assert job.refresh().parent_id == tree.job.id
    assert [entry.state for entry in last.timeline] == ["waiting"]
    assert last.children_ids == ()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"deduplication": Deduplication("k")}, ValidationError),
        ({"repeat": 1}, ValidationError),
        ({"on_failure": "explode"}, ValidationError),
        ({"on_failure": None}, ValidationError),
        ({"children": "abc"}, ValidationError),
        ({"children": 5}, ValidationError),
        ({"pritority": 1}, TypeError),
    ],
)
def test_options_that_flows_cannot_take_are_refused_at_the_node(
    options: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        FlowNode("q", "x", **options)
    with pytest.raises(ValidationError):
        FlowNode("no such/queue", "x")


def test_options_that_are_put_into_a_node_later_are_refused_too(
    manager: QueueManager, flows: FlowProducer
) -> None:
    node = FlowNode("q", "x")
    node.options["deduplication"] = Deduplication("k")
    with pytest.raises(ValidationError, match="neither deduplication nor repeat"):
        flows.add(node)
    node.options = {"nonsense": 1}
    with pytest.raises(TypeError, match="nonsense"):
        flows.add(node)
    node.options, node.on_failure = {}, "explode"
    for flow in (node, FlowNode("q", "top", children=[node])):
        with pytest.raises(ValidationError, match="on_failure"):
            flows.add(flow)
    for bad in (None, "x", manager):
        with pytest.raises(ValidationError):
            flows.add(bad)  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        flows.fan_in([node], node)
    with pytest.raises(ValidationError):
        FlowProducer("manager")  # type: ignore[arg-type]
    assert manager.queues() == []


def test_an_exception_in_the_middle_of_adding_leaves_nothing(
    manager: QueueManager, flows: FlowProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bunqueue_py.ops import flow_add

    parent = manager.push("q", name="parent")
    before = books(manager)
    real, calls = flow_add.admitted, iter(range(100))

    def breaks(*arguments: Any, **more: Any) -> Any:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments, **more)

    monkeypatch.setattr(flow_add, "admitted", breaks)
    node = FlowNode("q", "t", children=[FlowNode(f"q{n}", "x", tags=["t"]) for n in range(6)])
    with pytest.raises(KeyboardInterrupt):
        parent.add_child(node)
    monkeypatch.setattr(flow_add, "admitted", real)
    assert manager.counts().total == 1
    assert (state(parent), parent.children_ids) == ("waiting", ())
    manager.run_pending()
    assert books(manager) == before


def test_100_levels_and_10_000_nodes_are_taken(manager: QueueManager, flows: FlowProducer) -> None:
    tree = flows.add(deep(100))
    for _ in range(100):
        run(manager, "q")
    assert state(tree.job) == "completed"


# -- children that come later ----------------------------------------------------------------------


def test_a_job_that_waits_for_its_turn_waits_for_a_child_that_is_added(
    manager: QueueManager, flows: FlowProducer
) -> None:
    """B116."""
    parent = manager.push("q", name="parent", group="g")
    child = parent.add_child(FlowNode("r", "child", children=[FlowNode("r", "below")]))
    assert (state(parent), child.parent_id) == ("waiting-children", parent.id)
    assert manager.pull("q", group="g") is None
    sibling = manager.get_job(child.id)
    assert sibling is not None
    second = parent.add_child(FlowNode("s", "second"))
    assert [run(manager, "r").name for _ in range(2)] == ["below", "child"]
    assert state(parent) == "waiting-children"
    run(manager, "s")
    assert state(parent) == "waiting"
    assert parent.children_ids == (child.id, second.id)
    assert manager.pull("q", group="g") == parent


def test_a_running_child_adds_a_sibling_just_before_it_ends(
    manager: QueueManager, flows: FlowProducer
) -> None:
    """B116: the parent waits for it too."""
    tree = flows.add(FlowNode("top", "top", children=[FlowNode("q", "first")]))
    held = manager.pull("q")
    assert held is not None
    parent = manager.get_job(str(held.parent_id))
    assert parent is not None
    parent.add_child(FlowNode("q", "sibling"))
    manager.ack(held)
    assert state(tree.job) == "waiting-children"
    run(manager, "q")
    assert state(tree.job) == "waiting"


def test_a_finished_job_takes_no_children(manager: QueueManager) -> None:
    """B116."""
    job = manager.push("q", name="job")
    run(manager, "q")
    with pytest.raises(JobStateError, match="takes no children"):
        job.add_child(FlowNode("q", "late"))
    job.retry()
    kill(manager, "q")
    with pytest.raises(JobStateError):
        job.add_child(FlowNode("q", "late"))
    job.remove()
    with pytest.raises(JobNotFoundError):
        job.add_child(FlowNode("q", "late"))
    assert manager.counts().total == 0


def test_only_the_current_delivery_adds_children(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = manager.push("q", name="job", attempts=5, backoff=0.001)
    stale = manager.pull("q")
    assert stale is not None
    clock.advance(seconds=40)
    manager.run_pending()
    clock.advance(seconds=40)
    current = manager.pull("q")
    assert current is not None
    with pytest.raises(JobStateError, match="lost its lock"):
        stale.add_child(FlowNode("q", "x"))
    stale.token = "forged"
    with pytest.raises(LockError):
        stale.add_child(FlowNode("q", "x"))
    current.add_child(FlowNode("r", "x"))
    assert len(job.refresh().children_ids) == 1


def test_a_child_that_would_wait_for_its_own_parent_is_refused_with_the_way_spelled_out(
    manager: QueueManager, flows: FlowProducer
) -> None:
    """B115: over two queues, by a later change."""
    a = manager.push("a", name="a")
    b = manager.push("b", name="b", depends_on=[a])
    c = manager.push("c", name="c", depends_on=[b])
    before = books(manager)
    for named in (a, b, c):
        with pytest.raises(FlowError, match=rf"{a.id} -> node -> .*{a.id}"):
            a.add_child(FlowNode("a", "x", depends_on=[named]))
    assert books(manager) == before


def test_children_cannot_nest_deeper_than_100_levels_by_and_by(
    manager: QueueManager, flows: FlowProducer
) -> None:
    tree = flows.add(deep(99))
    leaf = [*tree.walk()][-1].job  # type: ignore[misc]
    child = leaf.add_child(FlowNode("q", "100"))
    with pytest.raises(FlowError, match="level 100"):
        child.add_child(FlowNode("q", "101"))


# -- a handler that waits --------------------------------------------------------------------------


def test_a_handler_adds_children_waits_and_goes_on_with_their_values() -> None:
    """B116: the step job."""
    with Harness() as h:
        steps = h.queue("steps")

        def step(job: Job) -> Any:
            if not job.children_ids:
                for n in range(3):
                    job.add_child(FlowNode("parts", f"part {n}", n))
                raise WaitForChildren()
            return sum(job.children_values().values())

        h.worker(steps, step)
        h.worker("parts", lambda job: job.data * 10)
        job = steps.add("sum", attempts=1)
        h.run_until_idle(raise_errors=True)
        assert job.refresh().return_value == 30
        assert (job.attempts_made, job.stall_count) == (0, 0)
        states = [entry.state for entry in job.timeline]
        assert states == [
            "waiting",
            "active",
            "waiting-children",
            "unblocked",
            "active",
            "completed",
        ]
        check(h.manager._state)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_child_that_fails_while_its_parent_runs_counts_when_that_waits(policy: Any) -> None:
    with Harness() as h:
        runs: list[Any] = []

        def step(job: Job) -> None:
            runs.append((len(job.failed_children()), len(job.ignored_failures())))
            if len(runs) == 1:
                job.add_child(FlowNode("parts", "bad", on_failure=policy))
                held = h.manager.pull("parts")
                assert held is not None
                h.manager.fail(held, "boom", unrecoverable=True)
                assert str(h.manager.get_state(job)) == "active"
                raise WaitForChildren()

        h.worker("steps", step)
        job = h.queue("steps").add("step")
        h.run_until_idle()
        expected = {
            "fail_parent": ("failed", [(0, 0)]),
            "continue_parent": ("completed", [(0, 0), (1, 0)]),
            "ignore_dependency": ("completed", [(0, 0), (0, 1)]),
            "remove_dependency": ("completed", [(0, 0), (0, 0)]),
            "wait": ("waiting-children", [(0, 0)]),
        }[policy]
        assert (state(job), runs) == expected


def test_waiting_for_no_children_at_all_fails_the_job_and_says_so() -> None:
    with Harness() as h:

        def step(job: Job) -> None:
            raise WaitForChildren()

        h.worker("steps", step)
        job = h.queue("steps").add("step")
        report = h.run_until_idle()
        assert report.runs == 1
        h.assert_failed(job, "unrecoverable")
        assert "no children" in str(job.refresh().error)


def test_a_handler_whose_lock_was_lost_cannot_have_its_job_wait(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = manager.push("q", name="job", attempts=5)
    held = manager.pull("q")
    assert held is not None
    held.add_child(FlowNode("r", "x"))
    clock.advance(seconds=40)
    manager.run_pending()
    assert manager.backend.park(job.id, held.token) is False
    with pytest.raises(LockError):
        manager.backend.park(job.id, "forged")
    assert manager.backend.park("nobody", None) is False
    assert state(job) in ("delayed", "waiting")


def test_a_parked_job_gives_back_its_slot(manager: QueueManager) -> None:
    queue = Queue("q", manager)
    queue.limits.set_concurrency(1)
    first, second = queue.add("first"), queue.add("second")
    held = manager.pull("q")
    assert held == first
    assert manager.pull("q") is None
    held.add_child(FlowNode("r", "x"))
    assert manager.backend.park(first.id, held.token)
    assert manager.pull("q") == second


def test_threads_run_a_step_job() -> None:
    """The worker's own way, on threads."""
    with QueueManager() as manager:

        def step(job: Job) -> Any:
            if not job.children_ids:
                job.add_child(FlowNode("parts", "part", 4))
                raise WaitForChildren()
            return list(job.children_values().values())

        with (
            Worker("steps", step, manager=manager),
            Worker("parts", lambda job: job.data, manager=manager),
        ):
            assert manager.push("steps", name="s").result(timeout=20) == [4]


# -- letting go of children ------------------------------------------------------------------------


def test_a_dependency_can_be_removed_and_the_other_job_goes_on_alone(
    manager: QueueManager, flows: FlowProducer
) -> None:
    tree = flows.add(FlowNode("top", "top", children=[FlowNode("q", "a"), FlowNode("q", "b")]))
    a, b = (child.job for child in tree.children)
    run(manager, "q")
    assert tree.job.remove_dependency(b)
    assert (state(tree.job), tree.job.children_ids) == ("waiting", (a.id,))
    assert b.refresh().parent_id is None
    assert not tree.job.remove_dependency("nobody")
    kill(manager, "q")
    assert state(tree.job) == "waiting"
    run(manager, "top")
    with pytest.raises(JobStateError):
        tree.job.remove_dependency(a)


def test_unprocessed_children_are_removed_with_all_below_them(
    manager: QueueManager, flows: FlowProducer
) -> None:
    tree = flows.add(
        FlowNode(
            "top",
            "top",
            children=[
                FlowNode("done", "done"),
                FlowNode("active", "active"),
                FlowNode("q", "gated", children=[FlowNode("q", "below"), deep(20)]),
                FlowNode("q", "delayed", delay=60),
            ],
        )
    )
    job = tree.job
    run(manager, "done", "kept")
    held = manager.pull("active")
    gone = job.remove_unprocessed_children()
    assert gone == [tree.children[2].job.id, tree.children[3].job.id]
    assert manager.counts("q").total == 0
    assert state(job) == "waiting-children"
    assert held is not None
    manager.ack(held, "too")
    assert state(job) == "waiting"
    assert [*job.children_values().values()] == ["kept", "too"]
    assert job.remove_unprocessed_children() == []


def test_what_others_wait_for_too_is_not_removed_with_unprocessed_children(
    manager: QueueManager, flows: FlowProducer
) -> None:
    below = [FlowNode("q", "alone"), FlowNode("q", "wanted")]
    tree = flows.add(FlowNode("q", "top", children=[FlowNode("q", "inner", children=below)]))
    (inner,) = tree.children
    alone, wanted = (child.job for child in inner.children)
    after = manager.push("r", depends_on=[wanted])
    assert tree.job.remove_unprocessed_children() == [inner.job.id]
    assert state(tree.job) == "waiting"
    assert manager.get_job(inner.job.id) is manager.get_job(alone.id) is None
    assert state(wanted) == "waiting"
    assert state(after) == "waiting-children"


def test_a_parent_that_is_removed_leaves_its_children_alone(
    manager: QueueManager, flows: FlowProducer
) -> None:
    tree = flows.add(FlowNode("top", "top", children=[FlowNode("q", "a"), FlowNode("q", "b")]))
    tree.job.remove()
    run(manager, "q"), kill(manager, "q")
    assert not manager._state.dependencies.dependents


# -- looking ---------------------------------------------------------------------------------------


def test_a_flow_is_read_and_drawn_with_its_states(
    manager: QueueManager, flows: FlowProducer
) -> None:
    tree = flows.add(
        FlowNode(
            "books",
            "bind",
            children=[
                FlowNode("pages", 'the "first" <page>', on_failure="ignore_dependency"),
                FlowNode("pages", "second", children=[FlowNode("inks", "ink", delay=60)]),
            ],
        )
    )
    kill(manager, "pages", "torn\nin two")
    found = flows.get(tree.job)
    assert str(found).splitlines() == [
        "bind (books) waiting-children",
        '|-- the "first" <page> (pages) failed: torn',
        "`-- second (pages) waiting-children",
        "    `-- ink (inks) delayed",
    ]
    drawing = found.to_mermaid()
    assert drawing.startswith("flowchart BT\n")
    assert 'n1["the #34;first#34; #60;page#62; (pages): failed"]' in drawing
    assert "    n3 --> n2" in drawing
    assert "class n1 failed" in drawing
    assert [node.job.name for node in flows.get(tree.job.id, depth=2).walk()][1:] == [
        'the "first" <page>',
        "second",
    ]
    assert flows.get(tree.job, depth=1) == FlowResult(tree.job)
    tree.children[0].job.remove()
    assert len(flows.get(tree.job).children) == 1
    with pytest.raises(JobNotFoundError):
        flows.get("nobody")
    for depth in (0, 101, None, 1.5):
        with pytest.raises(ValidationError):
            flows.get(tree.job, depth=depth)  # type: ignore[arg-type]


def test_the_timeline_tells_of_the_wait_whatever_else_becomes_of_the_job(tmp_path: Path) -> None:
    clock, path = VirtualClock(), tmp_path / "jobs.db"
    steps = []

    def told(manager: QueueManager, job_id: str) -> list[tuple[str, float]]:
        found = manager.get_job(job_id)
        assert found is not None
        return [
            (step.state, (step.at - found.created_at).total_seconds()) for step in found.timeline
        ]

    for end in ("waiting-children", "active", "retried"):
        with QueueManager(path, clock=clock, background=False) as manager:
            _, last = FlowProducer(manager).chain([FlowNode("q", "a"), FlowNode("q", "b")])
            for step, act in {
                "waiting-children": lambda: None,
                "unblocked": lambda: manager.ack(manager.pull("q")),  # type: ignore[arg-type]
                "active": lambda: manager.pull("q"),
                "completed": lambda job_id=last.id: manager.ack(
                    job_id, token=manager._state.index[job_id].last_token
                ),
                "retried": last.retry,
            }.items():
                act()
                clock.advance(seconds=1)
                if step == end:
                    break
            steps = told(manager, last.id)
            assert [step for step, _ in steps][-1] == end
            assert [at for _, at in steps] == [float(i) for i in range(len(steps))]
        with QueueManager(path, clock=clock, background=False) as manager:
            after = told(manager, last.id)
            assert after[: len(steps)] == steps
            Queue("q", manager).obliterate(force=True)
    assert len(steps) == 5
    with QueueManager(
        config=ManagerConfig(max_timeline=2), clock=clock, background=False
    ) as manager:
        _, last = FlowProducer(manager).chain([FlowNode("q", "a"), FlowNode("q", "b")])
        manager.ack(manager.pull("q"))  # type: ignore[arg-type]
        manager.pull("q")
        assert [step for step, _ in told(manager, last.id)] == ["unblocked", "active"]


def test_what_ties_a_job_is_in_its_dictionary(flows: FlowProducer) -> None:
    tree = flows.add(FlowNode("q", "top", children=[FlowNode("q", "leaf")]))
    told = tree.job.to_dict()
    assert told["children_ids"] == [tree.children[0].job.id]
    assert (told["parent_id"], told["depends_on"]) == (None, [])


# -- the harness -----------------------------------------------------------------------------------


def test_a_failing_leaf_and_a_delay_of_three_days_are_four_lines() -> None:
    with Harness() as h:
        bad = FlowNode("pages", "bad", on_failure="ignore_dependency", attempts=1)
        late = FlowNode("pages", "late", delay=timedelta(days=3))
        book = FlowProducer(h.manager).add(FlowNode("books", "bind", children=[bad, late])).job
        h.worker("books", lambda job: [*job.ignored_failures().values()])
        h.worker("pages", lambda job: None)
        h.fail_next("pages", ValueError("torn"))
        h.advance(days=2, hours=23)
        assert state(book) == "waiting-children"
        h.advance(hours=2)
        h.assert_completed(book)
        assert book.result() == ["ValueError: torn"]


def test_the_harness_says_what_a_job_waits_for_in_the_end() -> None:
    with Harness() as h:
        h.worker("a", lambda job: None)
        tree = FlowProducer(h.manager).add(
            FlowNode("a", "top", children=[FlowNode("a", "mid", children=[FlowNode("b", "leaf")])])
        )
        leaf = tree.children[0].children[0].job
        with pytest.raises(Exception, match=rf"waits for job 'leaf' of 'b' \({leaf.id}\)"):
            tree.job.result()
        report = h.run_until_idle()
        assert report.waiting == 3
        assert "Nobody works on 'b'" in str(report)
        h.manager.fail(h.manager.pull("b") or "", "x", unrecoverable=True)
        assert state(tree.job) == "failed"


@pytest.mark.parametrize("siblings", [1, 40])
@pytest.mark.parametrize("how", ["completed", "ignore_dependency", "remove_dependency"])
def test_how_a_child_had_ended_counts_after_a_crash_though_it_runs_again(
    tmp_path: Path, how: str, siblings: int
) -> None:
    """The edges stand in the parent's row, or, if they are many, in rows of their own."""
    policy = "fail_parent" if how == "completed" else how
    with Harness(tmp_path / "jobs.db") as harness:
        others = tuple(FlowNode("late", f"n{i}", delay=3600) for i in range(siblings))
        child = FlowNode("q", "child", attempts=1, on_failure=policy)
        parent = FlowProducer(harness.manager).add(
            FlowNode("q", "parent", children=(child, *others))
        )
        (first, *rest) = parent.children
        held = harness.manager.pull("q")
        if how == "completed":
            harness.manager.ack(held, "done")
        else:
            harness.manager.fail(held, "no", unrecoverable=True)
        first.job.retry()
        before = harness.manager.get_job(parent.job.id).children_ids
        harness.crash_and_restart()
        again = harness.manager.get_job(parent.job.id)
        assert again.children_ids == before
        assert again.ignored_failures().keys() == (
            {first.job.id} if how.startswith("ig") else set()
        )
        for other in rest:
            harness.manager.remove_dependency(parent.job.id, other.job.id)
        assert harness.manager.get_state(parent.job.id) == "waiting", "it waits for nothing more"


@pytest.mark.parametrize("many", [3, 40])
def test_a_job_that_came_after_all_its_dependencies_knows_them_after_a_crash(
    tmp_path: Path, many: int
) -> None:
    with Harness(tmp_path / "jobs.db") as harness:
        manager = harness.manager
        others = [job.id for job in manager.push_batch("a", [("x", n) for n in range(many)])]
        for job in manager.pull_batch("a", many):
            manager.ack(job, job.data)
        job = manager.push("q", depends_on=others)
        assert job.state == "waiting"
        manager.flush()
        harness.crash_and_restart()
        again = harness.manager.get_job(job.id)
        assert again.depends_on == tuple(others)
        assert list(again.children_values().values()) == list(range(many))


@pytest.mark.parametrize("many", [3, 40])
def test_what_failed_before_a_retry_is_known_after_a_crash(tmp_path: Path, many: int) -> None:
    with Harness(tmp_path / "jobs.db") as harness:
        manager = harness.manager
        children = [
            FlowNode("a", "x", attempts=1, on_failure="ignore_dependency") for _ in range(many)
        ]
        parent = FlowProducer(manager).fan_in(children, FlowNode("q", "p")).job
        parent.discard()
        for job in manager.pull_batch("a", many):
            manager.fail(job, "no")
        parent.retry()
        before = parent.refresh().ignored_failures()
        assert len(before) == many
        manager.flush()
        harness.crash_and_restart()
        again = harness.manager.get_job(parent.id)
        assert again.state == "waiting"
        assert again.ignored_failures() == before


@pytest.mark.parametrize("policy", ["fail_parent", "ignore_dependency"])
def test_a_child_that_a_file_has_spoiled_fails_its_parent(tmp_path: Path, policy: Any) -> None:
    """B112: a child that cannot be decoded ends as any that fails."""
    path, clock = tmp_path / "jobs.db", VirtualClock()
    with QueueManager(path, clock=clock, background=False) as manager:
        child = FlowNode("a", "child", on_failure=policy)
        tree = FlowProducer(manager).add(FlowNode("q", "p", children=[child]))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE jobs SET meta = 'x' WHERE id = ?", (tree.children[0].job.id,))
    with QueueManager(path, clock=clock, background=False) as manager:
        found = manager.get_job(tree.job.id)
        assert found is not None
        if policy == "fail_parent":
            assert (found.state, found.failed_reason) == ("failed", "dependency_failed")
        else:
            assert found.state == "waiting"
            assert list(found.ignored_failures()) == [tree.children[0].job.id]


def test_a_child_that_is_retried_and_removed_leaves_its_failed_parent_nothing_to_read(
    manager: QueueManager, flows: FlowProducer
) -> None:
    child = FlowNode("q", "child")
    parent = flows.add(FlowNode("q", "parent", children=[child], attempts=1)).job
    first = manager.pull("q")
    assert first is not None
    manager.ack(first, "told")
    held = manager.pull("q")
    assert held == parent
    manager.fail(held, "no")
    assert parent.children_values() == {first.id: "told"}
    # its next run will have another result
    first.retry()
    assert parent.children_values() == {}
    first.remove()
    with pytest.raises(ResultExpiredError, match="retried, and then removed"):
        parent.children_values()
