"""A state machine of its own for jobs that wait for jobs, over memory and over a file.

The other machines have all verbs but these. Here are these, and few others: what the priority or
the group of a job is does nothing to what waits for what.
"""

from __future__ import annotations

import os
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bunqueue_py import BunqueueError, FlowError, FlowNode, FlowProducer, JobStateError
from bunqueue_py.model.links import POLICIES
from bunqueue_py.ops.go_on import go_on
from bunqueue_py.ops.query import check
from bunqueue_py.shard.waiters import Waiter
from bunqueue_py.testing import Harness
from bunqueue_py.testing.model.flows import (
    ACTIVE,
    COMPLETED,
    FAILED,
    GATED,
    READY,
    FlowJob,
    FlowModel,
)

QUEUES = ("a", "b", "c")
MOST = 40
LEASE_MS = 10**9
SHOWN = {
    GATED: ("waiting-children",),
    READY: ("waiting", "delayed"),
    ACTIVE: ("active",),
    COMPLETED: ("completed",),
    FAILED: ("failed",),
}
DEPENDENCY = {"fail": "fail_parent", "wait": "wait", "ignore": "ignore_dependency"}
PICK = st.integers(0, 1_000)
POLICY = st.sampled_from(POLICIES)
TREE = st.recursive(
    st.tuples(st.sampled_from(QUEUES), POLICY, st.booleans(), st.just(())),
    lambda below: st.tuples(
        st.sampled_from(QUEUES), POLICY, st.booleans(), st.lists(below, max_size=3).map(tuple)
    ),
    max_leaves=5,
)


class FlowMachine(RuleBasedStateMachine):
    """Over memory."""

    on_disk = False

    @initialize()
    def start(self) -> None:
        self.folder = TemporaryDirectory() if self.on_disk else None
        path = None if self.folder is None else os.path.join(self.folder.name, "jobs.db")
        self.harness = Harness(path)
        self.model = FlowModel()
        self.held: dict[str, Any] = {}
        #: left without anybody who needed them when the process died: it may know them or not
        self.forgotten: set[str] = set()

    @property
    def manager(self) -> Any:
        return self.harness.manager

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.close()
            if self.folder is not None:
                self.folder.cleanup()

    def some(self, pick: int, *states: str) -> FlowJob | None:
        found = [j for j in self.model.jobs.values() if not states or j.state in states]
        return found[pick % len(found)] if found else None

    # -- coming in ---------------------------------------------------------------------------

    @rule(
        queue=st.sampled_from(QUEUES),
        picks=st.lists(PICK, max_size=3),
        policy=st.sampled_from(sorted(DEPENDENCY)),
        dropped=st.booleans(),
    )
    def push(self, queue: str, picks: list[int], policy: Any, dropped: bool) -> None:
        if len(self.model.jobs) >= MOST:
            return
        left = [i for i in self.model.left if i not in self.forgotten]
        names = [*self.model.jobs, *left, "nobody"]
        others = list(dict.fromkeys(names[pick % len(names)] for pick in picks))
        known = all(self.model.knows(other) for other in others)
        try:
            job = self.manager.push(
                queue,
                depends_on=others,
                on_dependency_failure=policy,
                remove_on_complete=dropped,
                attempts=1,
            )
        except FlowError:
            assert not known
            return
        assert known
        edges = dict.fromkeys(others, DEPENDENCY[policy])
        self.model.add(FlowJob(job.id, queue, edges=edges, removed_on_complete=dropped))

    @rule(tree=TREE)
    def add(self, tree: Any) -> None:
        if len(self.model.jobs) < MOST:
            self.enter(FlowProducer(self.manager).add(self.node(tree)), tree, None)

    def node(self, tree: Any) -> FlowNode:
        queue, policy, dropped, below = tree
        return FlowNode(
            queue,
            "n",
            children=[self.node(each) for each in below],
            on_failure=policy,
            remove_on_complete=dropped,
            attempts=1,
        )

    def enter(self, found: Any, tree: Any, parent: str | None) -> FlowJob:
        queue, policy, dropped, below = tree
        for child, each in zip(found.children, below, strict=True):
            self.enter(child, each, found.job.id)
        job = FlowJob(
            found.job.id,
            queue,
            parent=parent,
            on_failure=policy,
            edges={
                child.job.id: each[1] for child, each in zip(found.children, below, strict=True)
            },
            children=[child.job.id for child in found.children],
            removed_on_complete=dropped,
        )
        self.model.add(job)
        return job

    @rule(pick=PICK, queue=st.sampled_from(QUEUES), policy=POLICY, dropped=st.booleans())
    def add_child(self, pick: int, queue: str, policy: Any, dropped: bool) -> None:
        parent = self.some(pick)
        if parent is None or len(self.model.jobs) >= MOST:
            return
        node = self.node((queue, policy, dropped, ()))
        try:
            made = self.manager.add_child(self.held.get(parent.id, parent.id), node)
        except JobStateError:
            assert parent.state in (COMPLETED, FAILED)
            return
        assert parent.state not in (COMPLETED, FAILED)
        child = FlowJob(
            made.id, queue, parent=parent.id, on_failure=policy, removed_on_complete=dropped
        )
        self.model.add_child(parent, child)

    # -- running -----------------------------------------------------------------------------

    @rule(queue=st.sampled_from(QUEUES))
    def pull(self, queue: str) -> None:
        job = self.manager.pull(queue, lock_duration=None)
        ready = [j.id for j in self.model.jobs.values() if j.queue == queue and j.state == READY]
        if job is None:
            assert not ready or self.delayed(ready)
            return
        assert job.id in ready
        self.model.jobs[job.id].state = ACTIVE
        self.held[job.id] = job

    def delayed(self, ids: list[str]) -> bool:
        return all(str(self.manager.get_state(job_id)) == "delayed" for job_id in ids)

    @rule(pick=PICK, result=st.booleans())
    def ack(self, pick: int, result: bool) -> None:
        job = self.some(pick, ACTIVE)
        if job is not None:
            value = f"of {job.id}" if result else None
            assert self.manager.ack(self.held.pop(job.id), value).applied
            self.model.complete(job, value)

    @rule(pick=PICK, result=st.booleans())
    def go_on(self, pick: int, result: bool) -> None:
        job = self.some(pick, ACTIVE)
        if job is None:
            return
        held, value = self.held.pop(job.id), f"of {job.id}" if result else None
        data = None if value is None else self.manager.backend.encode(value)
        before = self.ready(job.queue)
        outcome, problem, following = go_on(
            self.manager._state, job.id, held.token, data, LEASE_MS, "w", Waiter()
        )
        assert outcome.applied
        assert problem is None
        self.model.complete(job, value)
        if following is not None:
            assert not before
            # others may have been let go to be delayed, after a crash
            assert following._id in self.ready(job.queue)
            self.model.jobs[following._id].state = ACTIVE
            self.held[following._id] = following

    def ready(self, queue: str) -> list[str]:
        found = [j.id for j in self.model.jobs.values() if j.queue == queue and j.state == READY]
        return [job_id for job_id in found if str(self.manager.get_state(job_id)) != "delayed"]

    @rule(pick=PICK)
    def fail(self, pick: int) -> None:
        job = self.some(pick, ACTIVE)
        if job is not None:
            assert self.manager.fail(self.held.pop(job.id), "no", unrecoverable=True).applied
            self.model.fail(job, "unrecoverable")

    @rule(pick=PICK)
    def park(self, pick: int) -> None:
        job = self.some(pick, ACTIVE)
        if job is not None:
            held = self.held.pop(job.id)
            assert self.manager.backend.park(job.id, held.token)
            if job.edges:
                self.model.park(job)
            else:
                self.model.fail(job, "unrecoverable")

    # -- from outside ------------------------------------------------------------------------

    @rule(pick=PICK)
    def retry(self, pick: int) -> None:
        job = self.some(pick, COMPLETED, FAILED)
        if job is None:
            return
        try:
            self.manager.retry(job.id)
        except JobStateError:
            assert not self.model.may_retry(job)
            return
        assert self.model.may_retry(job)
        self.model.retry(job)

    @rule(pick=PICK)
    def remove(self, pick: int) -> None:
        job = self.some(pick, GATED, READY, COMPLETED, FAILED)
        if job is not None:
            self.manager.remove(job.id)
            self.model.remove(job)

    @rule(pick=PICK)
    def discard(self, pick: int) -> None:
        job = self.some(pick, GATED, READY)
        if job is not None:
            self.manager.discard(job.id)
            self.model.fail(job, "discarded")

    @rule(pick=PICK, which=PICK)
    def drop(self, pick: int, which: int) -> None:
        job = self.some(pick)
        if job is None:
            return
        others = [*job.edges, "nobody"]
        other = others[which % len(others)]
        known = other in job.edges
        try:
            assert self.manager.remove_dependency(job.id, other) is known
        except JobStateError:
            assert job.state == COMPLETED
            return
        self.model.drop(job, other)
        if known and other in self.model.jobs and self.model.jobs[other].parent == job.id:
            self.model.jobs[other].parent = None

    @rule(pick=PICK)
    def remove_unprocessed(self, pick: int) -> None:
        job = self.some(pick)
        if job is None:
            return
        try:
            found = self.manager.remove_unprocessed_children(job.id)
        except JobStateError:
            assert job.state == COMPLETED
            return
        assert found == self.model.remove_unprocessed(job)

    @rule()
    def crash(self) -> None:
        if not self.on_disk:
            return
        self.manager.flush()
        self.harness.crash_and_restart()
        self.held.clear()
        # of those that have left, a process knows the newest, and a file what somebody needs
        waits = [job for job in self.model.jobs.values() if job.state != COMPLETED]
        needed = {
            other for job in waits for other in job.edges if job.settled.get(other) in (None, "met")
        }
        self.forgotten.update(self.model.left.keys() - needed)
        for job in list(self.model.jobs.values()):
            if job.state == ACTIVE:
                # the only attempt of each is lost
                self.model.fail(job, "worker_lost")

    # -- what must agree ---------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "harness"):
            return
        check(self.manager._state)
        assert not self.manager._state.dependencies.pending
        assert self.manager._state.index.keys() == self.model.jobs.keys()
        for job in self.model.jobs.values():
            seen = self.manager.get_job(job.id)
            what = f"{job.id} is {seen.state}, and not {job.state}"
            assert str(seen.state) in SHOWN[job.state], what
            assert list(seen.children_ids) == self.model.shown_children(job)
            assert seen.parent_id == job.parent
            if job.state == FAILED:
                assert seen.failed_reason == job.reason
            if job.state in (GATED, READY, ACTIVE):
                try:
                    values = seen.children_values()
                except BunqueueError:
                    # one that ran again since has another result, or none
                    continue
                for other, value in self.model.values(job).items():
                    if other in self.model.jobs and self.model.jobs[other].state == COMPLETED:
                        assert values[other] == value


class SqliteFlowMachine(FlowMachine):
    """Over a file."""

    on_disk = True
