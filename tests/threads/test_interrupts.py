"""Ctrl-C and MemoryError inside critical sections: invariant 9 of SPEC 16.

First a sweep that throws at every executed line of a verb in turn, then exceptions at random
moments into threads at work. After each the manager is used on, and its books must balance.
"""

from __future__ import annotations

import ast
import ctypes
import dis
import logging
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import bunqueue_py
from bunqueue_py import (
    Ack,
    Backoff,
    BulkAddError,
    BunqueueError,
    Deduplication,
    FlowNode,
    FlowProducer,
    Job,
    JobSpec,
    JobState,
    KeepJobs,
    ManagerConfig,
    Queue,
    QueueManager,
)
from bunqueue_py.model.job import ACTIVE
from bunqueue_py.ops import close as ops_close
from bunqueue_py.ops import tidy
from bunqueue_py.ops.query import check
from bunqueue_py.state import State
from bunqueue_py.tasks import deadlines
from bunqueue_py.tasks.stalls import LatePasses
from bunqueue_py.testing import SeededIds, VirtualClock
from tests.threads.patience import TIMEOUT, until

PACKAGE = str(Path(bunqueue_py.__file__).parent)
SWEPT = tuple(f"{PACKAGE}/{part}" for part in ("ops/", "shard/", "model/", "stores/", "state.py"))
ALL_STATES = (
    "waiting",
    "prioritized",
    "delayed",
    "waiting-children",
    "active",
    "completed",
    "failed",
)
DAY = 86_400
LEASE = 30


# -- throwing at the n-th line ---------------------------------------------------------------


@cache
def lock_lines(path: str) -> frozenset[int]:
    """The lines of `with ...lock` statements and of `finally` parts that release a lock: a trace
    function is called there at moments (before the release, and between it and the return) at
    which no real signal can land."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(Path(path).read_text())):
        if isinstance(node, ast.With):
            texts = [ast.unparse(item.context_expr) for item in node.items]
            if any("lock" in text for text in texts):
                lines.add(node.lineno)
        if isinstance(node, ast.Try):
            for part in node.finalbody:
                if ".release(" in ast.unparse(part):
                    lines.update(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    return frozenset(lines)


def jumps_back(frame: FrameType) -> bool:
    """Whether the frame stands at the end of a loop's round. What a trace function raises there,
    in a comprehension, escapes the `try` around it on CPython 3.13; what a signal raises does
    not. Loops for which that is otherwise are found by the test of conditional loops below."""
    code = frame.f_code.co_code
    return dis.opname[code[frame.f_lasti]].startswith("JUMP_BACKWARD")


class Trap:
    """Raises `error` at the n-th line of the engine that runs while it is set (0: never)."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self.at = at
        self.error = error
        self.lines = 0
        self.hit: str | None = None

    def __enter__(self) -> Trap:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self.hit is None and frame.f_code.co_filename.startswith(SWEPT):
            return self._line
        return None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        path = frame.f_code.co_filename
        if event == "line" and frame.f_lineno not in lock_lines(path) and not jumps_back(frame):
            self.lines += 1
            if self.lines == self.at:
                sys.settrace(None)
                self.hit = f"{path[len(PACKAGE) + 1 :]}:{frame.f_lineno} ({frame.f_code.co_name})"
                raise self.error
        return self._line


# -- a manager with its books ----------------------------------------------------------------


class World:
    """A manager on a virtual clock and what is known of its jobs.

    `pushed`: every id that a push returned. `held`: deliveries that are out. `may_go`: ids that
    the verb under test may make disappear.
    """

    def __init__(self, **config: Any) -> None:
        self.clock = VirtualClock()
        self.manager = QueueManager(
            clock=self.clock,
            background=False,
            config=ManagerConfig(shards=1, **config),
            _ids=SeededIds(),
        )
        #: ends what listens, so that verbs go their short ways
        self.silence = self.manager.events.subscribe(lambda event: None)
        self.letters = Queue("q", self.manager).dlq
        self.pushed: list[str] = []
        self.held: list[Job] = []
        self.may_go: set[str] = set()
        self.aftermath: Callable[[], None] = lambda: None

    def push(self, data: Any = None, **options: Any) -> Job:
        job = self.manager.push("q", data, **options)
        self.pushed.append(job.id)
        return job

    def hold(self, data: Any = None, **options: Any) -> Job:
        """Pushes a job and pulls it."""
        pushed = self.push(data, **options)
        pulled = self.manager.pull("q", lock_duration=LEASE)
        assert pulled is not None
        assert pulled.id == pushed.id
        self.held.append(pulled)
        return pulled

    def fail_for_good(self, **options: Any) -> Job:
        job = self.hold(**options)
        self.manager.fail(job, "broken", unrecoverable=True)
        self.held.remove(job)
        return job

    def complete(self, result: Any = "done", **options: Any) -> Job:
        job = self.hold(**options)
        self.manager.ack(job, result)
        self.held.remove(job)
        return job

    # -- the books -------------------------------------------------------------------------

    def look(self) -> dict[str, JobState]:
        """Every job once, in exactly one state; asserts that all views agree on it."""
        check(self.manager._state)
        seen: dict[str, JobState] = {}
        for state in ALL_STATES:
            for job in self.manager.get_jobs("q", state, limit=10_000):
                assert job.id not in seen, f"{job} stands in two states"
                seen[job.id] = job.state
                assert self.manager.get_state(job.id) == state
                assert job.attempts_made <= job.max_attempts
                assert job.stall_count <= 3
        counts = self.manager.counts("q")
        assert counts.total == len(seen)
        letters = self.letters.entries(limit=10_000)
        assert {entry.job.id for entry in letters} == {
            job_id for job_id, state in seen.items() if state == "failed"
        }
        assert all(entry.reason for entry in letters)
        for job_id in self.pushed:
            if job_id not in seen:
                assert job_id in self.may_go, "a job is lost"
                assert self.manager.get_state(job_id) == "unknown"
        return seen

    def take_all(self) -> int:
        """Pulls and acks whatever is ready; no delivery may be out twice."""
        taken = 0
        while (job := self.manager.pull("q", lock_duration=LEASE)) is not None:
            assert job.id in self.manager_ids(), "a job was delivered that nobody knows"
            for earlier in self.held:
                if earlier.id == job.id and earlier.token is not None:
                    renewed = self.manager.heartbeat(earlier)
                    assert not renewed, "a job is out twice"
            assert self.manager.ack(job, "drained").applied
            taken += 1
            assert taken < 1_000, "the queue never ends"
        return taken

    def manager_ids(self) -> set[str]:
        jobs = self.manager.get_jobs("q", limit=10_000)
        return {job.id for job in jobs}

    def settle(self) -> None:
        """Goes on until nothing is pending or active: leases run out, delays come due."""
        for _ in range(12):
            self.take_all()
            self.look()
            counts = self.manager.counts("q")
            waits = counts.delayed or counts.waiting_children
            if not counts.active and not waits and not len_ready(counts):
                return
            for _ in range(3):
                self.clock.advance(seconds=2 * LEASE)
                self.manager.run_pending()
            self.clock.advance(days=1)
            self.manager.run_pending()
        raise AssertionError(f"still there after all leases and delays: {self.manager.counts('q')}")

    def balance(self) -> None:
        """The books after an exception."""
        self.look()
        self.manager.resume("q")
        self.aftermath()
        self.settle()
        states = self.look()
        assert set(states.values()) <= {JobState.COMPLETED, JobState.FAILED}
        for entry in self.letters.entries(limit=10_000):
            assert self.letters.retry(entry.job)
        self.settle()
        fresh = self.push("afterwards", custom_id="fresh")
        assert self.manager.push("q", custom_id="fresh").duplicate
        self.settle()
        assert self.manager.get_result(fresh) == "drained"
        self.manager.run_pending()
        check(self.manager._state)


def len_ready(counts: Any) -> int:
    return int(counts.waiting + counts.prioritized + counts.paused)


Verb = Callable[[], Any]
Scenario = Callable[[World], Verb]
SCENARIOS: dict[str, Scenario] = {}


def scenario(fn: Scenario) -> Scenario:
    """Registers what prepares a world and returns the verb that is then interrupted."""
    SCENARIOS[fn.__name__] = fn
    return fn


def some_neighbours(world: World) -> None:
    world.push("plain")
    world.push("high", priority=5)
    world.push("low", priority=-5)
    world.push("later", delay=60)


@scenario
def push_plain(world: World) -> Verb:
    some_neighbours(world)
    return lambda: world.push("new")


@scenario
def push_to_a_new_queue(world: World) -> Verb:
    def verb() -> None:
        world.manager.push("q2", 1)
        world.manager.push("q", 1)

    def aftermath() -> None:
        world.manager.push("q2", 2)
        while (job := world.manager.pull("q2")) is not None:
            assert world.manager.ack(job).applied
        check(world.manager._state)

    world.aftermath = aftermath
    return verb


@scenario
def push_with_priority(world: World) -> Verb:
    some_neighbours(world)
    return lambda: world.push("new", priority=7, lifo=True)


@scenario
def push_delayed(world: World) -> Verb:
    some_neighbours(world)
    return lambda: world.push("new", delay=30, tags=["t"])


@scenario
def push_with_a_moment(world: World) -> Verb:
    some_neighbours(world)
    return lambda: world.push("new", run_at=world.clock.now + timedelta(minutes=5))


@scenario
def push_with_ttl(world: World) -> Verb:
    some_neighbours(world)
    return lambda: world.push("new", ttl=20, delay=40)


@scenario
def push_with_a_new_custom_id(world: World) -> Verb:
    some_neighbours(world)
    return lambda: world.push("new", custom_id="mine")


def names_stand(world: World) -> Callable[[], None]:
    """What must hold after the exception: every job that is there is found by its names."""

    def aftermath() -> None:
        for job in world.manager.get_jobs("q", ("waiting", "delayed")):
            if job.deduplication_key is not None:
                assert world.manager.deduplication_owner("q", job.deduplication_key) == job.id
            if job.custom_id is not None:
                assert world.manager.push("q", custom_id=job.custom_id).id == job.id

    return aftermath


@scenario
def push_with_new_names_while_nobody_listens(world: World) -> Verb:
    some_neighbours(world)
    world.silence()

    def verb() -> None:
        world.push("new", custom_id="mine")
        world.push("new", deduplication=Deduplication("k"))
        world.push("new", custom_id="yours", deduplication=Deduplication("t", 10))

    world.aftermath = names_stand(world)
    return verb


@scenario
def push_with_a_held_key_while_nobody_listens(world: World) -> Verb:
    world.complete(deduplication=Deduplication("old", 1, hold="ttl"))
    world.clock.advance(seconds=2)
    world.silence()
    world.aftermath = names_stand(world)
    return lambda: world.push(
        "new", custom_id="mine", deduplication=Deduplication("k", 10, hold="ttl")
    )


@scenario
def push_with_taken_names_while_nobody_listens(world: World) -> Verb:
    world.push("first", custom_id="mine", deduplication=Deduplication("k", 10))
    world.silence()

    def verb() -> None:
        world.push("second", custom_id="mine")
        world.push("third", deduplication=Deduplication("k", 20, "extend"))

    world.aftermath = one_owner(world)
    return verb


@scenario
def push_of_named_jobs_in_a_batch_while_nobody_listens(world: World) -> Verb:
    world.silence()

    def verb() -> None:
        specs = [
            JobSpec("a", 1, custom_id="mine"),
            JobSpec("b", 2, deduplication=Deduplication("k")),
            JobSpec("c", 3, deduplication=Deduplication("t", 10)),
            JobSpec("d", 4, deduplication=Deduplication("h", 10, hold="ttl")),
        ]
        world.pushed += [job.id for job in world.manager.push_batch("q", specs)]

    world.aftermath = names_stand(world)
    return verb


@scenario
def life_of_grouped_jobs_while_nobody_listens(world: World) -> Verb:
    for i in range(3):
        world.push(i, group="a")
    world.push("delayed", group="b", delay=1)
    world.push("other", group="b", priority=2)
    world.silence()

    def verb() -> None:
        world.push("new", group="c")
        world.push("last", group="a")
        world.clock.advance(seconds=2)
        for _ in range(4):
            job = world.manager.pull("q", lock_duration=LEASE)
            assert job is not None
            world.manager.ack(job)

    return verb


@scenario
def life_of_plain_jobs_while_nobody_listens(world: World) -> Verb:
    world.push("low", priority=-1)
    world.silence()

    def verb() -> None:
        for priority in (0, 5, 0, 2, 5, -1):
            world.push(priority, priority=priority)
        specs = [JobSpec("in a batch", n, priority=n % 3) for n in range(3)]
        world.pushed += [job.id for job in world.manager.push_batch("q", specs)]
        for n in range(3):
            job = world.manager.pull("q", lock_duration=LEASE)
            assert job is not None
            world.manager.ack(job, {"n": n} if n else None)
        jobs = world.manager.pull_batch("q", 4, lock_duration=LEASE)
        world.manager.ack_batch([Ack(job) for job in jobs])

    return verb


@scenario
def push_with_a_live_custom_id(world: World) -> Verb:
    world.push("first", custom_id="mine")
    return lambda: world.push("second", custom_id="mine")


@scenario
def push_with_the_custom_id_of_a_completed_job(world: World) -> Verb:
    old = world.complete(custom_id="mine")
    world.may_go.add(old.id)
    return lambda: world.push("new", custom_id="mine")


@scenario
def push_with_the_custom_id_of_a_failed_job(world: World) -> Verb:
    old = world.fail_for_good(custom_id="mine")
    world.may_go.add(old.id)
    return lambda: world.push("new", custom_id="mine")


@scenario
def push_a_batch(world: World) -> Verb:
    some_neighbours(world)

    def verb() -> None:
        jobs = world.manager.push_batch(
            "q",
            [
                ("plain", 1),
                JobSpec("high", 2, priority=3),
                JobSpec("later", 3, delay=10),
                JobSpec("named", 4, custom_id="four"),
            ],
        )
        world.pushed += [job.id for job in jobs]

    return verb


@scenario
def pull_one(world: World) -> Verb:
    some_neighbours(world)
    return lambda: world.held.append(world.manager.pull("q", lock_duration=LEASE))


@scenario
def pull_from_the_lane(world: World) -> Verb:
    world.push(1)
    world.push(2)
    return lambda: world.held.append(world.manager.pull("q", lock_duration=LEASE))


@scenario
def pull_of_what_came_due(world: World) -> Verb:
    world.push(1, delay=5)
    world.push(2, run_at=world.clock.now + timedelta(seconds=6))
    world.push(3, delay=7)
    world.clock.advance(seconds=10)
    return lambda: world.held.append(world.manager.pull("q", lock_duration=LEASE))


@scenario
def pull_with_a_timeout_and_a_ttl(world: World) -> Verb:
    world.push(1, timeout=10, ttl=1000)
    world.push(2)
    return lambda: world.held.append(world.manager.pull("q", lock_duration=LEASE))


@scenario
def pull_past_an_expired_job(world: World) -> Verb:
    world.push(1, ttl=1)
    world.push(2)
    world.clock.advance(seconds=2)
    return lambda: world.held.append(world.manager.pull("q", lock_duration=LEASE))


@scenario
def pull_a_batch(world: World) -> Verb:
    some_neighbours(world)
    return lambda: world.held.extend(world.manager.pull_batch("q", 10, lock_duration=LEASE))


@scenario
def ack_without_a_result(world: World) -> Verb:
    job = world.hold()
    return lambda: world.manager.ack(job)


@scenario
def ack_with_a_result(world: World) -> Verb:
    job = world.hold(timeout=10)
    some_neighbours(world)
    return lambda: world.manager.ack(job, {"a": 1})


@scenario
def ack_of_a_job_with_a_history(world: World) -> Verb:
    job = world.hold(backoff=Backoff.fixed(1, jitter=0))
    world.manager.fail(job, "once")
    world.clock.advance(seconds=2)
    again = world.manager.pull("q", lock_duration=LEASE)
    assert again is not None
    world.held[:] = [again]
    return lambda: world.manager.ack(again, 1)


@scenario
def ack_of_a_job_that_leaves(world: World) -> Verb:
    job = world.hold(remove_on_complete=True, custom_id="mine")
    world.may_go.add(job.id)
    return lambda: world.manager.ack(job, 1)


@scenario
def ack_of_a_job_kept_by_count_and_age(world: World) -> Verb:
    keep = KeepJobs(count=1, age=3600)
    first = world.complete(remove_on_complete=keep)
    job = world.hold(remove_on_complete=keep)
    world.may_go |= {first.id, job.id}
    return lambda: world.manager.ack(job, 1)


@scenario
def ack_a_batch(world: World) -> Verb:
    jobs = [world.hold(i) for i in range(3)]
    return lambda: world.manager.ack_batch([Ack(job, i) for i, job in enumerate(jobs)])


@scenario
def fail_with_a_retry(world: World) -> Verb:
    job = world.hold(attempts=2)
    some_neighbours(world)
    return lambda: world.manager.fail(job, ValueError("once"))


@scenario
def fail_with_an_immediate_retry(world: World) -> Verb:
    job = world.hold(attempts=2, backoff=Backoff.fixed(0))
    some_neighbours(world)
    return lambda: world.manager.fail(job, "once")


@scenario
def fail_the_last_attempt(world: World) -> Verb:
    job = world.hold(attempts=1, timeout=10)
    return lambda: world.manager.fail(job, "for good")


@scenario
def fail_for_good(world: World) -> Verb:
    job = world.hold(custom_id="mine")
    return lambda: world.manager.fail(job, "for good", unrecoverable=True)


@scenario
def fail_of_a_job_that_leaves(world: World) -> Verb:
    job = world.hold(remove_on_fail=True, attempts=1)
    world.may_go.add(job.id)
    return lambda: world.manager.fail(job, "for good")


@scenario
def fail_of_a_job_kept_by_count(world: World) -> Verb:
    keep = KeepJobs(count=1, age=3600)
    first = world.fail_for_good(remove_on_fail=keep)
    job = world.hold(remove_on_fail=keep, attempts=1)
    world.may_go |= {first.id, job.id}
    return lambda: world.manager.fail(job, "for good")


@scenario
def release(world: World) -> Verb:
    job = world.hold(timeout=10)
    some_neighbours(world)
    return lambda: world.manager.release(job)


@scenario
def release_with_a_delay(world: World) -> Verb:
    job = world.hold()
    return lambda: world.manager.release(job, delay=5)


@scenario
def heartbeat_and_extension(world: World) -> Verb:
    job = world.hold()

    def verb() -> None:
        world.manager.heartbeat(job)
        world.manager.extend_lock(job, 5)
        world.manager.extend_lock(job, 500)

    return verb


@scenario
def progress(world: World) -> Verb:
    job = world.hold()
    return lambda: world.manager.update_progress(job, 50, "half")


@scenario
def expiry_with_a_retry(world: World) -> Verb:
    world.hold(attempts=3)
    some_neighbours(world)
    world.clock.advance(seconds=LEASE + 1)
    return world.manager.run_pending


@scenario
def expiry_of_the_last_attempt(world: World) -> Verb:
    world.hold(attempts=1)
    world.clock.advance(seconds=LEASE + 1)
    return world.manager.run_pending


@scenario
def expiry_of_a_renewed_lease(world: World) -> Verb:
    job = world.hold()
    world.clock.advance(seconds=LEASE - 1)
    assert world.manager.heartbeat(job)
    world.clock.advance(seconds=2)
    return world.manager.run_pending


@scenario
def late_ack_after_an_expiry(world: World) -> Verb:
    job = world.hold()
    world.clock.advance(seconds=LEASE + 1)
    world.manager.run_pending()
    return lambda: world.manager.ack(job, "late")


@scenario
def timeout_of_a_run(world: World) -> Verb:
    world.hold(attempts=2, timeout=3)
    world.clock.advance(seconds=4)
    return world.manager.run_pending


@scenario
def ttl_of_pending_jobs(world: World) -> Verb:
    world.push(1, ttl=3)
    world.push(2, ttl=3, delay=100)
    world.clock.advance(seconds=4)
    return world.manager.run_pending


@scenario
def age_of_finished_jobs(world: World) -> Verb:
    done = world.complete(remove_on_complete=KeepJobs(age=3))
    dead = world.fail_for_good(remove_on_fail=KeepJobs(age=3))
    world.may_go |= {done.id, dead.id}
    world.clock.advance(seconds=4)
    return world.manager.run_pending


@scenario
def remove_a_waiting_job(world: World) -> Verb:
    some_neighbours(world)
    job = world.push("new", custom_id="mine")
    world.may_go.add(job.id)
    return lambda: world.manager.remove(job)


@scenario
def remove_a_delayed_job(world: World) -> Verb:
    some_neighbours(world)
    job = world.push("new", delay=5)
    world.may_go.add(job.id)
    return lambda: world.manager.remove(job)


@scenario
def remove_finished_jobs(world: World) -> Verb:
    done, dead = world.complete(), world.fail_for_good()
    world.may_go |= {done.id, dead.id}

    def verb() -> None:
        world.manager.remove(done)
        world.letters.remove(dead)

    return verb


@scenario
def retry_a_dead_letter(world: World) -> Verb:
    job = world.fail_for_good(custom_id="mine", ttl=1000)
    some_neighbours(world)
    return lambda: world.letters.retry(job)


@scenario
def retry_a_completed_job(world: World) -> Verb:
    job = world.complete(remove_on_complete=KeepJobs(count=5))
    return lambda: world.manager.retry(job)


@scenario
def drain(world: World) -> Verb:
    some_neighbours(world)
    world.push("due", delay=1)
    world.clock.advance(seconds=2)
    world.may_go |= set(world.pushed)
    return lambda: world.manager.drain("q")


@scenario
def obliterate(world: World) -> Verb:
    world.complete(custom_id="mine")
    world.fail_for_good()
    world.hold(timeout=10)
    some_neighbours(world)
    world.may_go |= set(world.pushed)
    return lambda: world.manager.obliterate("q", force=True)


@scenario
def promote_a_delayed_job(world: World) -> Verb:
    some_neighbours(world)
    job = world.push("mine", delay=60)
    return lambda: world.manager.promote(job)


@scenario
def promote_all_jobs(world: World) -> Verb:
    some_neighbours(world)
    world.push(1, run_at=world.clock.now + timedelta(seconds=6))
    world.push(2, delay=5, priority=3)
    return lambda: world.manager.promote_all("q")


@scenario
def discard_jobs(world: World) -> Verb:
    jobs = [world.push(1, delay=9), world.push(2, ttl=90), world.push(3, remove_on_fail=True)]
    world.may_go.add(jobs[-1].id)
    some_neighbours(world)
    return lambda: [world.manager.discard(job) for job in jobs]


@scenario
def update_data_of_jobs(world: World) -> Verb:
    held = world.hold("old")
    waiting = world.push("old")

    def verb() -> None:
        world.manager.update_data(held, "new")
        world.manager.update_data(waiting, "new")

    return verb


@scenario
def change_priorities(world: World) -> Verb:
    jobs = [
        world.push("lane"),
        world.push("high", priority=5),
        world.push("later", delay=60),
        world.push("on time", run_at=world.clock.now + timedelta(minutes=5)),
    ]
    some_neighbours(world)

    def verb() -> None:
        for priority, lifo in ((7, None), (-7, True), (0, False)):
            for job in jobs:
                world.manager.change_priority(job, priority, lifo)

    return verb


@scenario
def change_delays(world: World) -> Verb:
    jobs = [
        world.push("lane"),
        world.push("high", priority=5, ttl=600),
        world.push("later", delay=60),
        world.push("on time", run_at=world.clock.now + timedelta(minutes=5)),
    ]
    some_neighbours(world)

    def verb() -> None:
        for delay in (20, 0):
            for job in jobs:
                world.manager.change_delay(job, delay)

    return verb


@scenario
def retry_all_jobs(world: World) -> Verb:
    world.fail_for_good(remove_on_fail=KeepJobs(age=9999, count=5))
    world.fail_for_good(ttl=9999)
    world.complete()

    def verb() -> None:
        world.manager.retry_all("q")
        world.manager.retry_all("q", "completed")

    return verb


@scenario
def clean_jobs(world: World) -> Verb:
    world.complete(custom_id="mine")
    world.fail_for_good(remove_on_fail=KeepJobs(age=9999, count=5))
    world.push("late", delay=60, ttl=999)
    some_neighbours(world)
    world.may_go |= set(world.pushed)

    def verb() -> None:
        for state in ("completed", "failed", "delayed", "prioritized", "waiting"):
            world.manager.clean("q", 0, state=state)

    return verb


@scenario
def walk_through_all_jobs(world: World) -> Verb:
    world.hold()
    some_neighbours(world)
    world.push("due", delay=1)
    world.clock.advance(seconds=2)

    def verb() -> None:
        jobs = [job.id for job in world.manager.iter_jobs("q")]
        assert len(jobs) == len(set(jobs)) == 6

    return verb


@scenario
def pause_and_resume(world: World) -> Verb:
    some_neighbours(world)

    def verb() -> None:
        world.manager.pause("q")
        world.manager.resume("q")

    return verb


def one_owner(world: World) -> Callable[[], None]:
    """What must hold of key "k" after the exception: never no job, and one that owns it."""

    def aftermath() -> None:
        live = [
            job
            for state in ("waiting", "prioritized", "delayed", "active")
            for job in world.manager.get_jobs("q", state)
            if job.deduplication_key == "k"
        ]
        assert live, "neither the old job nor the new one is there"
        owner = world.manager.deduplication_owner("q", "k")
        assert owner in [job.id for job in live], "the key has no owner"
        pending = [job.id for job in live if job.state != "active"]
        assert pending in ([], [owner]), "two jobs of one key will run"

    return aftermath


@scenario
def push_with_a_new_key(world: World) -> Verb:
    some_neighbours(world)
    return lambda: world.push("new", deduplication=Deduplication("k", 10))


@scenario
def push_with_a_held_key(world: World) -> Verb:
    for i in range(3):
        key = Deduplication(f"k{i}", 1, hold="ttl")
        world.may_go.add(world.complete(deduplication=key, remove_on_complete=True).id)
    world.clock.advance(seconds=2)
    return lambda: world.push("new", deduplication=Deduplication("k", 10, hold="ttl"))


@scenario
def push_with_a_taken_key(world: World) -> Verb:
    world.push("first", deduplication=Deduplication("k", 10))
    world.aftermath = one_owner(world)
    return lambda: world.push("second", deduplication=Deduplication("k", 20, "extend"))


@scenario
def push_that_replaces_a_pending_owner(world: World) -> Verb:
    some_neighbours(world)
    old = world.push("old", deduplication=Deduplication("k", 10), custom_id="mine", delay=5)
    world.may_go.add(old.id)
    world.aftermath = one_owner(world)
    return lambda: world.push("new", deduplication=Deduplication("k", 10, "replace"))


@scenario
def push_that_takes_the_key_of_an_active_owner(world: World) -> Verb:
    world.hold("old", deduplication=Deduplication("k"))
    world.aftermath = one_owner(world)
    return lambda: world.push("new", deduplication=Deduplication("k", 10, "replace", "ttl"))


@scenario
def push_a_batch_of_one_key(world: World) -> Verb:
    def verb() -> None:
        keys = [Deduplication("k", mode=mode) for mode in ("skip", "replace", "skip")]
        specs = [JobSpec("job", i, deduplication=key) for i, key in enumerate(keys)]
        for job in world.manager.push_batch("q", specs):
            world.pushed.append(job.id)
            world.may_go.add(job.id)

    return verb


@scenario
def ends_of_jobs_with_keys(world: World) -> Verb:
    done = world.hold(deduplication=Deduplication("a"))
    dead = world.hold(deduplication=Deduplication("b"), attempts=1)
    held = world.hold(deduplication=Deduplication("k", 10**6, hold="ttl"), remove_on_complete=True)
    world.may_go.add(held.id)

    def verb() -> None:
        world.manager.ack(done)
        world.manager.fail(dead, "boom")
        world.manager.ack(held)

    def aftermath() -> None:
        assert world.manager.deduplication_owner("q", "k") == held.id
        for key, job in (("a", done), ("b", dead)):
            live = world.manager.get_state(job) in ("active", "waiting", "delayed")
            assert (world.manager.deduplication_owner("q", key) == job.id) is live

    world.aftermath = aftermath
    return verb


@scenario
def release_of_a_key(world: World) -> Verb:
    world.push("first", deduplication=Deduplication("k"))
    return lambda: world.manager.deduplication_release("q", "k")


@scenario
def retry_of_a_job_with_a_key(world: World) -> Verb:
    job = world.fail_for_good(deduplication=Deduplication("k", 10))
    world.complete(deduplication=Deduplication("k", 100, hold="ttl"))
    some_neighbours(world)

    def aftermath() -> None:
        if world.manager.get_state(job) == "waiting":
            assert world.manager.deduplication_owner("q", "k") == job.id

    world.aftermath = aftermath
    return lambda: world.manager.retry(job)


@scenario
def configure_dead_letters(world: World) -> Verb:
    jobs = [world.fail_for_good() for _ in range(3)]
    world.may_go |= {job.id for job in jobs}
    return lambda: world.letters.configure(True, 60, 3, DAY, 2)


@scenario
def automatic_retry_of_dead_letters(world: World) -> Verb:
    world.letters.configure(auto_retry=True, retry_interval=60)
    world.fail_for_good(custom_id="mine", ttl=1000)
    world.fail_for_good()
    world.letters.configure(auto_retry=True, retry_interval=60, max_age=None)
    some_neighbours(world)
    world.clock.advance(seconds=60)
    return world.manager.run_pending


@scenario
def death_after_an_automatic_retry(world: World) -> Verb:
    world.letters.configure(auto_retry=True, retry_interval=60)
    world.fail_for_good()
    world.clock.advance(seconds=60)
    world.manager.run_pending()
    job = world.manager.pull("q", lock_duration=LEASE)
    assert job is not None
    world.held.append(job)
    return lambda: world.manager.fail(job, "again", unrecoverable=True)


@scenario
def success_after_an_automatic_retry(world: World) -> Verb:
    world.letters.configure(auto_retry=True, retry_interval=60)
    world.fail_for_good()
    world.clock.advance(seconds=60)
    world.manager.run_pending()
    job = world.manager.pull("q", lock_duration=LEASE)
    assert job is not None
    world.held.append(job)
    return lambda: world.manager.ack(job, "at last")


@scenario
def expiry_of_dead_letters(world: World) -> Verb:
    world.letters.configure(max_age=60)
    world.may_go |= {world.fail_for_good(custom_id=name).id for name in ("a", "b")}
    world.clock.advance(seconds=60)
    return world.manager.run_pending


@scenario
def overflow_of_dead_letters(world: World) -> Verb:
    world.letters.configure(max_entries=1)
    world.may_go.add(world.fail_for_good().id)
    job = world.hold()
    world.may_go.add(job.id)
    return lambda: world.manager.fail(job, "x", unrecoverable=True)


@scenario
def retry_all_dead_letters(world: World) -> Verb:
    for n in range(3):
        world.fail_for_good(data=n, custom_id=str(n))
    some_neighbours(world)
    return lambda: world.letters.retry_all(reason="unrecoverable")


@scenario
def purge_dead_letters(world: World) -> Verb:
    world.may_go |= {world.fail_for_good(custom_id=str(n)).id for n in range(3)}
    return lambda: world.letters.purge(older_than=0)


@scenario
def read_dead_letters(world: World) -> Verb:
    world.fail_for_good()

    def verb() -> None:
        world.letters.entries(older_than=0)
        world.letters.stats()

    return verb


def hold_without_a_lock(world: World, **options: Any) -> Job:
    world.push(**options)
    job = world.manager.pull("q", lock_duration=None)
    assert job is not None
    world.held.append(job)
    return job


@scenario
def pull_without_a_lock(world: World) -> Verb:
    world.push(stall_timeout=10)
    return lambda: hold_without_a_lock(world)


@scenario
def suspicion_and_loss(world: World) -> Verb:
    hold_without_a_lock(world, attempts=3)
    hold_without_a_lock(world, attempts=1)

    def verb() -> None:
        world.clock.advance(seconds=30)
        world.manager.run_pending()
        world.clock.advance(seconds=5)
        world.manager.run_pending()

    return verb


@scenario
def a_sign_of_life_without_a_lock(world: World) -> Verb:
    job = hold_without_a_lock(world)
    world.clock.advance(seconds=31)
    world.manager.run_pending()

    def verb() -> None:
        world.manager.heartbeat(job)
        world.clock.advance(seconds=5)
        world.manager.run_pending()
        world.manager.extend_lock(job, LEASE)

    return verb


@scenario
def configure_stalls(world: World) -> Verb:
    hold_without_a_lock(world)
    hold_without_a_lock(world)
    stalls = Queue("q", world.manager).stalls

    def verb() -> None:
        stalls.configure(interval=10)
        stalls.configure(enabled=False)
        stalls.configure()

    world.aftermath = stalls.configure
    return verb


@scenario
def release_of_an_owner(world: World) -> Verb:
    for n in range(3):
        world.push(n, timeout=10, ttl=1000)
        job = world.manager.pull("q", lock_duration=LEASE, owner="ada")
        assert job is not None
        world.held.append(job)
    return lambda: world.manager.release_owner("ada")


@scenario
def a_late_pass(world: World) -> Verb:
    world.hold(timeout=LEASE)
    hold_without_a_lock(world)
    world.clock.advance(seconds=LEASE + 10)

    def verb() -> None:
        deadlines.tick(world.manager._state, 10_000, LatePasses())
        world.manager.run_pending()

    return verb


@scenario
def a_pass_with_heartbeats_behind(world: World) -> Verb:
    world.hold()
    world.hold(timeout=10 * LEASE)
    world.clock.advance(seconds=LEASE)

    def verb() -> None:
        deadlines.tick(world.manager._state, 0, LatePasses(), 6_000)
        world.manager.run_pending()

    return verb


def cleaned_up(world: World) -> None:
    state = world.manager._state
    cleanup = next(task for task in world.manager._loop._tasks if task.name == "clean-up")
    state.cleanup.arm(world.clock.timeline_ms())
    while state.cleanup.due_ms <= world.clock.timeline_ms():
        cleanup.run(world.clock, sturdy=False)
    for shard in state.shards.shards:
        left = True
        begin = True
        while left:
            _, left = tidy.sweep_deadlines(state, shard, begin=begin)
            begin = False


@scenario
def a_clean_up(world: World) -> Verb:
    queue = Queue("q", world.manager)
    world.hold(timeout=10 * LEASE)
    for n in range(6):
        world.push(n, ttl=1000 + n)
    for job in queue.get_jobs("waiting", limit=3):
        job.discard()
    queue.groups["gone"].cool_down(5)
    world.clock.advance(seconds=6)
    return lambda: cleaned_up(world)


# -- groups and limits -----------------------------------------------------------------------


def groups_to_spare(world: World) -> None:
    """Groups with ready, delayed, blocked and paused jobs; whatever blocks them ends by itself or
    in the aftermath."""
    groups = Queue("q", world.manager).groups
    for group in ("a", "b", "blocked", "paused"):
        world.push(1, group=group)
        world.push(2, group=group, priority=3)
        world.push(3, group=group, delay=20)
    groups["blocked"].set_concurrency(1)
    groups["b"].set_rate_limit(5, per=7)
    groups["paused"].pause()
    held = world.manager.pull("q", lock_duration=LEASE, group="blocked")
    assert held is not None
    world.held.append(held)

    def aftermath() -> None:
        groups["paused"].resume()
        groups["b"].clear_rate_limit()
        settled(world)

    world.aftermath = aftermath


def settled(world: World) -> None:
    """What limits a queue may have is all taken back; the places of its groups are right."""
    queue = Queue("q", world.manager)
    queue.limits.set_concurrency(None)
    queue.limits.clear_rate_limit()
    queue.limits.cool_down(0)
    for name in queue.groups:
        queue.groups[name].set_concurrency(None)
        queue.groups[name].clear_rate_limit()
        queue.groups[name].cool_down(0)
        queue.groups[name].resume()
    check(world.manager._state)


@scenario
def push_into_a_group(world: World) -> Verb:
    groups_to_spare(world)

    def verb() -> None:
        world.push("new", group="fresh", group_limit=5)
        world.push("new", group="b", priority=7)
        world.push("new", group="blocked")

    return verb


@scenario
def push_a_batch_into_a_full_group(world: World) -> Verb:
    groups_to_spare(world)

    def verb() -> None:
        specs = [JobSpec("j", i, group="c", group_limit=2) for i in range(3)]
        try:
            world.manager.push_batch("q", specs)
        except BulkAddError as error:
            world.pushed += [job.id for job in error.accepted]  # type: ignore[attr-defined]

    return verb


@scenario
def pull_of_grouped_jobs(world: World) -> Verb:
    groups_to_spare(world)

    def verb() -> None:
        for _ in range(3):
            world.held.append(world.manager.pull("q", lock_duration=LEASE))
        world.held.append(world.manager.pull("q", lock_duration=LEASE, group="b"))

    return verb


@scenario
def pull_of_grouped_jobs_past_an_expired_one(world: World) -> Verb:
    groups_to_spare(world)
    world.push("stale", group="a", priority=9, ttl=1)
    world.clock.advance(seconds=2)
    return lambda: world.held.append(world.manager.pull("q", lock_duration=LEASE))


@scenario
def pull_of_what_time_lets_start(world: World) -> Verb:
    groups_to_spare(world)
    groups = Queue("q", world.manager).groups
    groups["a"].cool_down(5)
    groups["passing"].cool_down(5)
    Queue("q", world.manager).limits.set_rate_limit(1, per=5)
    world.held.append(world.manager.pull("q", lock_duration=LEASE))
    world.clock.advance(seconds=21)
    return lambda: world.held.extend(world.manager.pull_batch("q", 9, lock_duration=LEASE))


@scenario
def ack_of_a_grouped_job(world: World) -> Verb:
    groups_to_spare(world)
    return lambda: world.manager.ack(world.held[0], 1)


@scenario
def fail_of_a_grouped_job(world: World) -> Verb:
    groups_to_spare(world)
    return lambda: world.manager.fail(world.held[0], "once")


@scenario
def release_of_a_grouped_job(world: World) -> Verb:
    groups_to_spare(world)
    return lambda: world.manager.release(world.held[0])


@scenario
def expiry_of_a_grouped_job(world: World) -> Verb:
    groups_to_spare(world)
    world.clock.advance(seconds=LEASE + 1)
    return world.manager.run_pending


@scenario
def remove_grouped_jobs(world: World) -> Verb:
    groups_to_spare(world)
    jobs = [world.push(0, group="a"), world.push(0, group="c"), world.push(0, group="c", delay=5)]
    world.may_go |= {job.id for job in jobs}
    return lambda: [world.manager.remove(job) for job in jobs]


@scenario
def drain_groups(world: World) -> Verb:
    groups_to_spare(world)
    world.may_go |= set(world.pushed)
    return lambda: world.manager.drain("q")


@scenario
def limits_of_the_queue(world: World) -> Verb:
    groups_to_spare(world)
    limits = Queue("q", world.manager).limits

    def verb() -> None:
        limits.set_concurrency(1)
        limits.set_rate_limit(2, per=5, ttl=50)
        limits.set_rate_limit(1, per=5)
        limits.cool_down(3)
        limits.status()
        limits.clear_rate_limit()
        limits.set_concurrency(None)

    return verb


@scenario
def settings_of_a_group(world: World) -> Verb:
    groups_to_spare(world)
    group = Queue("q", world.manager).groups["a"]

    def verb() -> None:
        group.pause()
        group.resume()
        group.set_concurrency(2)
        group.set_rate_limit(1, per=5)
        group.set_rate_limit(3, per=5)
        group.clear_rate_limit()

    return verb


@scenario
def settings_of_a_group_without_jobs(world: World) -> Verb:
    groups_to_spare(world)
    group = Queue("q", world.manager).groups["ghost"]

    def verb() -> None:
        group.set_concurrency(2)
        group.set_concurrency(None)
        group.cool_down(2)
        group.cool_down(0)
        group.pending()

    return verb


@scenario
def group_concurrency_of_a_worker(world: World) -> Verb:
    groups_to_spare(world)
    backend = world.manager.backend

    def verb() -> None:
        backend.bound_groups("q", "worker", 1)
        backend.bound_groups("q", "worker", None)

    before = world.aftermath

    def aftermath() -> None:
        backend.bound_groups("q", "worker", None)
        before()

    world.aftermath = aftermath
    return verb


# -- features together -----------------------------------------------------------------------


@scenario
def control_of_grouped_jobs(world: World) -> Verb:
    groups_to_spare(world)
    ready = world.push(group="a", deduplication=Deduplication("k"))
    later = world.push(group="paused", delay=60)
    gone = world.push(group="c", deduplication=Deduplication("c"))

    def verb() -> None:
        world.manager.change_priority(ready, 5)
        world.manager.change_priority(later, -5)
        world.manager.promote(later)
        world.manager.change_delay(ready, 30)
        world.manager.discard(gone)

    return verb


@scenario
def replacement_of_a_grouped_job(world: World) -> Verb:
    groups_to_spare(world)
    old = world.push("old", group="a", deduplication=Deduplication("k"))
    world.may_go.add(old.id)
    before, owned = world.aftermath, one_owner(world)

    def aftermath() -> None:
        owned()
        before()

    world.aftermath = aftermath
    key = Deduplication("k", mode="replace")
    return lambda: world.push("new", group="b", group_limit=50, deduplication=key)


@scenario
def clean_and_walk_of_groups(world: World) -> Verb:
    groups_to_spare(world)
    world.may_go |= set(world.pushed)

    def verb() -> None:
        list(world.manager.iter_jobs("q"))
        world.manager.clean("q", 0, state="prioritized")
        world.manager.promote_all("q")
        world.manager.counts_per_priority("q")

    return verb


@scenario
def automatic_retry_of_grouped_jobs_with_keys(world: World) -> Verb:
    world.letters.configure(auto_retry=True, retry_interval=60)
    world.fail_for_good(group="a", deduplication=Deduplication("k"))
    world.fail_for_good(group="a", deduplication=Deduplication("taken"))
    world.push(delay=100, deduplication=Deduplication("taken"))
    Queue("q", world.manager).groups["a"].set_concurrency(1)
    world.clock.advance(seconds=60)

    def aftermath() -> None:
        world.manager.deduplication_release("q", "taken")

    world.aftermath = aftermath
    return world.manager.run_pending


@scenario
def loss_of_grouped_jobs(world: World) -> Verb:
    groups_to_spare(world)
    for attempts in (1, 3):
        world.push(group="slow", attempts=attempts)
        job = world.manager.pull("q", lock_duration=None, group="slow")
        assert job is not None
        world.held.append(job)
    world.clock.advance(seconds=30)
    world.manager.run_pending()
    world.clock.advance(seconds=5)
    return world.manager.run_pending


# -- jobs that wait for jobs ---------------------------------------------------------------------

BEFORE_FLOWS = frozenset(SCENARIOS)


def a_flow(world: World, *children: FlowNode, **options: Any) -> Job:
    """A parent with those children, who are ready; returns the parent."""
    added = FlowProducer(world.manager).add(
        FlowNode("q", "parent", children=children, attempts=1, **options)
    )
    world.pushed += [each.job.id for each in added.walk()]
    return added.job


def leaf(on_failure: Any = "fail_parent", **options: Any) -> FlowNode:
    return FlowNode("q", "child", on_failure=on_failure, attempts=1, **options)


def whole_or_not_at_all(world: World, size: int) -> Callable[[], None]:
    """What must hold after the exception: of the flow all jobs are there, or none."""

    def aftermath() -> None:
        there = [job for job in world.manager.get_jobs("q", limit=1_000) if job.name == "flow"]
        assert len(there) in (0, size), f"{len(there)} of {size} jobs of a flow are there"
        for job in there:
            assert len(job.children_ids) == (job.data or 0)

    return aftermath


def flow_of_four() -> FlowNode:
    leaves = [FlowNode("q", "flow", tags=tags) for tags in ((), ("t",))]
    inner = FlowNode("q", "flow", 2, children=leaves, custom_id="inner")
    return FlowNode("q", "flow", 1, children=[inner], delay=5)


@scenario
def adding_of_a_flow(world: World) -> Verb:
    world.push("plain")
    world.aftermath = whole_or_not_at_all(world, 4)
    return lambda: FlowProducer(world.manager).add(flow_of_four())


@scenario
def adding_of_a_flow_that_nobody_hears_of(world: World) -> Verb:
    world.silence()
    first = world.push("first")
    world.aftermath = whole_or_not_at_all(world, 4)
    nodes = [FlowNode("q", "flow") for _ in range(3)]
    final = FlowNode("q", "flow", 3, depends_on=[first])
    return lambda: FlowProducer(world.manager).fan_in(nodes, final)


@scenario
def adding_of_a_child(world: World) -> Verb:
    waiting = world.push("parent")
    running = world.push("parent", priority=5)
    held = world.manager.pull("q", lock_duration=LEASE)
    assert held is not None
    assert held.id == running.id
    world.held.append(held)

    def aftermath() -> None:
        jobs = world.manager.get_jobs("q", limit=1_000)
        there = {job.id for job in jobs if job.name == "child"}
        known = {child for job in (waiting, running) for child in job.refresh().children_ids}
        assert known == there

    world.aftermath = aftermath

    def verb() -> None:
        waiting.add_child(leaf())
        held.add_child(leaf(delay=5))

    return verb


def held_children(world: World, count: int) -> list[Job]:
    """That many children of a parent, each out."""
    a_flow(world, *(leaf() for _ in range(count)))
    found = world.manager.pull_batch("q", count, lock_duration=LEASE)
    world.held += found
    return found


@scenario
def completion_of_the_last_child(world: World) -> Verb:
    first, last = held_children(world, 2)
    world.manager.ack(first, "of the first")
    world.held.remove(first)
    world.push("waits too", depends_on=[last], delay=5)
    return lambda: world.manager.ack(last, "of the last")


@scenario
def going_on_with_the_next_of_a_chain(world: World) -> Verb:
    world.silence()
    first = world.hold("first")
    second = world.push("second", depends_on=[first])
    world.push("later", depends_on=[first], delay=5)
    world.push("third", depends_on=[second])
    backend, idle = world.manager.backend, world.manager.backend.wait_handle()
    queue = world.manager._state.queues["q"]
    with queue.lock:
        queue.waiters.join(idle, first=False)  # type: ignore[arg-type]

    def verb() -> None:
        job: Job | None = first
        while job is not None:
            handle = backend.wait_handle()
            _, _, job = backend.go_on(job.id, job.token, None, LEASE * 1_000, "w", handle)

    def aftermath() -> None:
        with queue.lock:
            queue.waiters.leave(idle)  # type: ignore[arg-type]

    world.aftermath = aftermath
    return verb


@scenario
def completion_in_a_batch_that_many_wait_for(world: World) -> Verb:
    world.silence()
    children = held_children(world, 3)
    for _ in range(17):
        world.push("waits", depends_on=[children[0]])
    return lambda: world.manager.ack_batch([Ack(job, "r") for job in children])


@scenario
def failure_of_children(world: World) -> Verb:
    policies = ("fail_parent", "continue_parent", "ignore_dependency")
    parents = [a_flow(world, leaf(policy), leaf()) for policy in policies]
    children = world.manager.pull_batch("q", 10, lock_duration=LEASE)
    world.held += children

    def verb() -> None:
        for job in children[::2]:
            world.manager.fail(job, "no", unrecoverable=True)

    def aftermath() -> None:
        # who waits for a retry gets it
        world.clock.advance(seconds=60)
        world.manager.run_pending()
        world.may_go.add(parents[0].id)
        if parents[0].refresh().state == "failed":
            # it cannot be retried before its child
            parents[0].remove()
        for job in children[::2]:
            if job.refresh().state == "failed":
                world.manager.retry(job)

    world.aftermath = aftermath
    return verb


@scenario
def removal_of_dependencies(world: World) -> Verb:
    parent = a_flow(world, leaf(delay=5), leaf(delay=5))
    other = a_flow(world, leaf(delay=5), FlowNode("q", "inner", children=[leaf(delay=5)]))
    world.may_go |= {job.id for job in world.manager.get_jobs("q", limit=100)} - {
        parent.id,
        *parent.children_ids,
        other.id,
    }

    def verb() -> None:
        parent.remove_dependency(parent.children_ids[0])
        other.remove_unprocessed_children()

    return verb


@scenario
def end_of_a_job_that_others_waited_for(world: World) -> Verb:
    first = world.complete("result")
    removed = world.complete("result")
    waits = world.push("waits", depends_on=[first, removed], delay=5)
    world.may_go.add(removed.id)

    def verb() -> None:
        world.manager.remove(removed)
        world.manager.retry(first)
        world.manager.promote(waits)

    return verb


@scenario
def parking_of_a_parent(world: World) -> Verb:
    parent = world.hold("parent")
    ended = parent.add_child(leaf("ignore_dependency", priority=5))
    failing = world.manager.pull("q", lock_duration=LEASE)
    assert failing is not None
    assert failing.id == ended.id
    world.manager.fail(failing, "no", unrecoverable=True)
    parent.add_child(leaf(delay=5))
    world.pushed += parent.refresh().children_ids
    return lambda: world.manager.backend.park(parent.id, parent.token)


OF_FLOWS = SCENARIOS.keys() - BEFORE_FLOWS
"""Theirs are long ways: they are swept in greater steps."""


def sweep(
    name: str, error: type[BaseException], step: int = 1, first: int = 1, **config: Any
) -> None:
    """Interrupts the scenario at every `step`-th line from the `first` on, then once not at all;
    fails with the list of all lines after which the books did not balance."""
    broken: list[str] = []
    at = first
    hit: str | None = "the start"
    while hit is not None:
        world = World(**config)
        verb = SCENARIOS[name](world)
        trap = Trap(at, error)
        at += step
        try:
            with trap:
                verb()
        except error:
            assert trap.hit is not None
        hit = trap.hit
        try:
            world.balance()
            world.manager.close()
        except Exception as problem:
            broken.append(f"after {error.__name__} at {hit}: {problem!r}")
    assert at > 5, "the sweep saw no lines"
    more = [] if len(broken) <= 12 else [f"... {len(broken)} in all"]
    assert not broken, "\n".join([f"{name}:", *broken[:12], *more])


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_exception_at_some_lines_of_a_verb_leaves_balanced_books(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(100)
    sweep(name, KeyboardInterrupt, step=211 if name in OF_FLOWS else 37)


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("name", SCENARIOS)
def test_an_exception_at_any_line_of_a_verb_leaves_balanced_books(
    name: str,
    error: type[BaseException],
    caplog: pytest.LogCaptureFixture,
    slow_rounds: Callable[[int, int], int],
) -> None:
    caplog.set_level(100)
    # in the short form each of the two has an eighth of the lines, and not the same
    step = slow_rounds(32 if name in OF_FLOWS else 8, 1)
    sweep(name, error, step, first=1 if step == 1 or error is KeyboardInterrupt else 5)


@pytest.mark.parametrize(
    "prepare", [some_neighbours, pytest.param(groups_to_spare, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, pytest.param(MemoryError, marks=pytest.mark.slow)]
)
def test_an_exception_in_the_rebuild_itself_is_made_good_by_the_next_call(
    error: type[BaseException],
    prepare: Callable[[World], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The section is broken off in a pull, and then at every line of what mends it."""
    caplog.set_level(100)
    at = 0
    hit: str | None = "the start"
    while hit is not None:
        at += 3
        world = World()
        world.complete(custom_id="mine")
        world.fail_for_good()
        world.hold(timeout=1000)
        prepare(world)
        with pytest.raises(error), Trap(30, error):
            world.manager.pull("q", lock_duration=LEASE)
        trap = Trap(at, error)
        try:
            with trap:
                world.manager.counts("q")
        except error:
            assert trap.hit is not None
        hit = trap.hit
        world.balance()
        world.manager.close()
    assert at > 60, "the shard was not rebuilt"


def keys_in_all_states(world: World) -> Callable[[], object]:
    """Keys of jobs in every state, and the push that takes over a pending job's key. The keys are
    right whatever happens: `aftermath` looks."""
    push, manager = world.push, world.manager
    owners: dict[str, str | None] = {}

    def own(job: Job) -> None:
        assert job.deduplication_key is not None
        owners[job.deduplication_key] = job.id

    runs = world.hold(deduplication=Deduplication("runs", 10**6))
    own(runs)
    world.hold(deduplication=Deduplication("passed on"))
    kept = world.complete(deduplication=Deduplication("kept", 10**6, hold="ttl"))
    own(kept)
    gone = Deduplication("gone", 10**6, hold="ttl")
    left = world.complete(deduplication=gone, remove_on_complete=True)
    world.may_go.add(left.id)
    own(left)
    world.complete(deduplication=Deduplication("done"))
    world.fail_for_good(deduplication=Deduplication("dead"))
    own(push(priority=3, deduplication=Deduplication("passed on", mode="replace")))
    push(deduplication=Deduplication("released"))
    manager.deduplication_release("q", "released")
    push(deduplication=Deduplication("expired", 1))
    world.clock.advance(seconds=2)
    own(push(group="a", deduplication=Deduplication("grouped")))
    own(push(delay=60, deduplication=Deduplication("delayed", 10**6)))
    owners |= dict.fromkeys(("done", "dead", "released", "expired"))
    old = push("old", delay=5, custom_id="mine", deduplication=Deduplication("k", 10))
    world.may_go.add(old.id)
    sole_owner = one_owner(world)

    def aftermath() -> None:
        sole_owner()
        assert {key: manager.deduplication_owner("q", key) for key in owners} == owners

    world.aftermath = aftermath
    return lambda: push("new", deduplication=Deduplication("k", 10, "replace"))


def line_between_a_newcomer_and_the_end_of_its_predecessor() -> int:
    """At which line the push must break off to leave two jobs of one key to the rebuild."""
    for at in range(1, 1000):
        world = World()
        push = keys_in_all_states(world)
        with pytest.raises(KeyboardInterrupt), Trap(at, KeyboardInterrupt):
            push()
        state = world.manager._state
        live = [r for r in state.index.values() if r.state < ACTIVE]
        both = [record for record in live if record.unique_key == "k"]
        owner = state.queues["q"].unique_keys.owners["k"]
        world.manager.close()
        if len(both) == 2 and owner is both[1]:
            return at
    raise AssertionError("the push never leaves two")


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (KeyboardInterrupt, 19),
        pytest.param(KeyboardInterrupt, 1, marks=pytest.mark.slow),
        pytest.param(MemoryError, 1, marks=pytest.mark.slow),
    ],
)
def test_an_exception_in_the_rebuild_leaves_every_deduplication_key_with_its_job(
    error: type[BaseException],
    step: int,
    caplog: pytest.LogCaptureFixture,
    slow_rounds: Callable[[int, int], int],
) -> None:
    """A `replace` breaks off with two jobs of one key there; then, at every line in turn, the
    rebuild that ends the older one."""
    caplog.set_level(100)
    step = max(step, slow_rounds(6, 1))
    broken: list[str] = []
    cut = line_between_a_newcomer_and_the_end_of_its_predecessor()
    at = 1
    hit: str | None = "the start"
    while hit is not None:
        world = World()
        push = keys_in_all_states(world)
        with pytest.raises(error), Trap(cut, error):
            push()
        trap = Trap(at, error)
        at += step
        try:
            with trap:
                world.manager.counts("q")
        except error:
            assert trap.hit is not None
        hit = trap.hit
        try:
            world.balance()
            world.manager.close()
        except Exception as problem:
            broken.append(f"after {error.__name__} at {hit}: {problem!r}")
    assert at > 300, "the shard was not rebuilt"
    assert not broken, "\n".join([f"{len(broken)} in all", *broken[:12]])


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_exception_while_completed_jobs_make_room_does_not_end_their_bound(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 1 bounds memory: the completed jobs must be trimmed after the exception as before."""
    caplog.set_level(100)
    broken: list[str] = []
    at = 0
    hit: str | None = "the start"
    while hit is not None:
        at += 1
        world = World(keep_completed=2)
        done = [world.complete(i, data=i) for i in range(2)]
        job = world.hold()
        world.may_go |= set(world.pushed)
        trap = Trap(at, error)
        try:
            with trap:
                world.manager.ack(job, "last")
        except error:
            assert trap.hit is not None
        hit = trap.hit
        try:
            for _ in range(5):
                world.manager.ack(world.manager.pull("q") or world.hold())
            kept = world.manager.counts("q").completed
            assert kept <= 2, f"{kept} completed jobs are kept"
            assert [world.manager.wait_for(job, 0) for job in done] == [0, 1]
            check(world.manager._state)
            world.manager.close()
        except Exception as problem:
            broken.append(f"after {error.__name__} at {hit}: {problem!r}")
    assert at > 20, "nothing was trimmed"
    assert not broken, "\n".join(broken)


# -- blocked threads -------------------------------------------------------------------------


class Blocked:
    """A thread that waits in `pull` for a job of queue "q"."""

    def __init__(self, manager: QueueManager, timeout: float = TIMEOUT) -> None:
        self.job: Job | None = None
        self.done = threading.Event()

        def run() -> None:
            try:
                self.job = manager.pull("q", timeout=timeout)
            except BunqueueError:
                pass
            finally:
                self.done.set()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        until(lambda: manager.backend.others_wait("q"), "the thread waits")


WAKERS: dict[str, Callable[[QueueManager, Job | None], Any]] = {
    "push": lambda manager, job: manager.push("q", 1),
    "push_batch": lambda manager, job: manager.push_batch("q", [("a", 1), ("b", 2)]),
    "release": lambda manager, job: manager.release(job),  # type: ignore[arg-type]
    "fail": lambda manager, job: manager.fail(job, "x"),  # type: ignore[arg-type]
    "resume": lambda manager, job: manager.resume("q"),
    "promote": lambda manager, job: manager.promote(job),  # type: ignore[arg-type]
    "promote_all": lambda manager, job: manager.promote_all("q"),
    "change_delay": lambda manager, job: manager.change_delay(job, 0),  # type: ignore[arg-type]
}


@pytest.mark.slow
@pytest.mark.parametrize("waker", WAKERS)
def test_an_exception_in_what_wakes_a_blocked_pull_loses_no_wake(
    waker: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever it lands: the next push reaches the waiting thread at once."""
    caplog.set_level(100)
    at = 0
    hit: str | None = "the start"
    while hit is not None:
        at += 1
        with QueueManager(background=False, config=ManagerConfig(shards=1)) as manager:
            job = None
            if waker in ("release", "fail"):
                manager.push("q", attempts=2, backoff=Backoff.fixed(0))
                job = manager.pull("q")
            elif waker in ("promote", "promote_all", "change_delay"):
                job = manager.push("q", delay=3600)
            elif waker == "resume":
                manager.pause("q")
                manager.push("q")
            blocked = Blocked(manager)
            trap = Trap(at, KeyboardInterrupt)
            try:
                with trap:
                    WAKERS[waker](manager, job)
            except KeyboardInterrupt:
                assert trap.hit is not None
            hit = trap.hit
            manager.resume("q")
            manager.push("q", "one more")
            assert blocked.done.wait(TIMEOUT / 2), f"the waiter slept on after {hit}"
            assert blocked.job is not None
            check(manager._state)
    assert at > 5


LIMITED_WAKERS: dict[str, tuple[Callable[[Queue], object], Callable[[Queue, Job], object]]] = {
    "ack, group": (
        lambda queue: queue.groups["a"].set_concurrency(1),
        lambda queue, job: queue.manager.ack(job),
    ),
    "ack, queue": (
        lambda queue: queue.limits.set_concurrency(1),
        lambda queue, job: queue.manager.ack(job),
    ),
    "release": (
        lambda queue: queue.groups["a"].set_concurrency(1),
        lambda queue, job: queue.manager.release(job, delay=60),
    ),
    "raise a limit": (
        lambda queue: queue.limits.set_concurrency(1),
        lambda queue, job: queue.limits.set_concurrency(2),
    ),
    "end a cool-down": (
        lambda queue: queue.groups["a"].cool_down(3600),
        lambda queue, job: queue.groups["a"].cool_down(0),
    ),
    "resume a group": (
        lambda queue: queue.groups["a"].pause(),
        lambda queue, job: queue.groups["a"].resume(),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("waker", LIMITED_WAKERS)
def test_an_exception_in_what_lets_a_limited_job_start_loses_no_wake(
    waker: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever it lands: once the verb has been repeated the waiting thread has its job."""
    caplog.set_level(100)
    block, unblock = LIMITED_WAKERS[waker]
    at = 0
    hit: str | None = "the start"
    while hit is not None:
        at += 1
        with QueueManager(background=False, config=ManagerConfig(shards=1)) as manager:
            queue = Queue("q", manager)
            manager.push("q", group="a")
            job = manager.pull("q")
            assert job is not None
            block(queue)
            manager.push("q", "blocked", group="a")
            blocked = Blocked(manager)
            trap = Trap(at, KeyboardInterrupt)
            try:
                with trap:
                    unblock(queue, job)
            except KeyboardInterrupt:
                assert trap.hit is not None
                unblock(queue, job)
            hit = trap.hit
            assert blocked.done.wait(TIMEOUT / 2), f"the waiter slept on after {hit}"
            assert blocked.job is not None
            assert blocked.job.data == "blocked"
            check(manager._state)
    assert at > 5


# -- a hole in the interpreter ---------------------------------------------------------------


def conditional_loops(node: ast.AST) -> Iterator[ast.While]:
    """The `while` loops with a condition inside the node, those of inner functions left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(child, ast.While) and not isinstance(child.test, ast.Constant):
            yield child
        yield from conditional_loops(child)


def test_no_conditional_loop_stands_directly_in_a_locked_section() -> None:
    """CPython 3.13 (3.13.0 was tried) does not guard the jump back of `while condition:` by the
    `with` or `try` around it: a Ctrl-C that lands there would keep the lock for ever. A `for`
    loop, `while True` and a loop in a called function are guarded."""
    found = []
    for path in sorted(Path(PACKAGE).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.With) and any(
                "lock" in ast.unparse(item.context_expr) for item in node.items
            ):
                found += [f"{path.name}:{loop.lineno}" for loop in conditional_loops(node)]
    assert found == []


# -- at random moments -----------------------------------------------------------------------


class Victim:
    """A thread that repeats `step`, into which exceptions are thrown.

    At most one is on its way at any time, and only while the thread stands inside the `try`, so
    that none can end the thread itself.
    """

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self._gate = threading.Lock()
        self._ready = False
        self.stop = False
        self.caught = 0
        self.problem: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def throw(self, error: type[BaseException]) -> None:
        with self._gate:
            if self._ready and self.thread.ident is not None:
                self._ready = False
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self.thread.ident), ctypes.py_object(error)
                )

    def _run(self) -> None:
        while not self.stop:
            try:
                self._ready = True
                for _ in range(20):
                    self._step()
                with self._gate:
                    under_way, self._ready = not self._ready, False
                for _ in range(1000 * under_way):  # what is under way must land in here
                    pass
            except (KeyboardInterrupt, MemoryError):
                self.caught += 1
            except BaseException as problem:
                with self._gate:
                    self._ready = False
                self.problem = problem
                return


class Books:
    """What threads that are interrupted at any moment can say for certain."""

    def __init__(self, manager: QueueManager) -> None:
        self.manager = manager
        self.pushed: list[str] = []
        self.applied: list[str] = []

    def push(self) -> None:
        n = len(self.pushed) % 7
        if n == 0:
            jobs = self.manager.push_batch("q", [("a", 1), JobSpec("b", 2, priority=2)])
            self.pushed.extend([job.id for job in jobs])
        else:
            job = self.manager.push("q", {"n": n}, priority=n % 3, attempts=1000)
            self.pushed.append(job.id)

    def work(self) -> None:
        job = self.manager.pull("q", lock_duration=LEASE)
        if job is None:
            return
        n = len(self.applied) % 9
        if n == 0 and job.attempts_made < 2:
            self.manager.release(job)
        elif n == 1 and job.attempts_made < 2 and job.max_attempts > 10:
            self.manager.fail(job, "again")
        elif self.manager.ack(job, None if n % 2 else {"n": n}).applied:
            self.applied.append(job.id)


def bombard(books: Books, error: type[BaseException], hits: int) -> None:
    """Four threads push and pull until that many exceptions have hit them."""
    dice = random.Random()
    victims = [Victim(step) for step in (books.push, books.work, books.work, books.push)]
    for victim in victims:
        victim.thread.start()
    deadline = time.monotonic() + 30 * TIMEOUT
    while sum(victim.caught for victim in victims) < hits:
        assert time.monotonic() < deadline, "the exceptions do not land"
        dice.choice(victims).throw(error)
        for _ in range(dice.randrange(200)):
            pass
        time.sleep(0)
    for victim in victims:
        victim.stop = True
    for victim in victims:
        victim.thread.join(TIMEOUT)
        assert not victim.thread.is_alive(), "a thread hangs: a lock was lost"
        if victim.problem is not None:
            raise victim.problem


def close_the_books(books: Books, clock: VirtualClock, *, may_fail: bool) -> None:
    """Everything pushed ends exactly once."""
    manager = books.manager
    check(manager._state)
    for _ in range(20):
        while (job := manager.pull("q")) is not None:
            if manager.ack(job, "drained").applied:
                books.applied.append(job.id)
        counts = manager.counts("q")
        if not (counts.active or counts.delayed or len_ready(counts)):
            break
        clock.advance(hours=2)
        while manager.run_pending():
            pass
    counts = manager.counts("q")
    unfinished = counts.active + counts.delayed + len_ready(counts)
    assert unfinished == 0, f"left over: {counts}"
    twice = [job_id for job_id, n in Counter(books.applied).items() if n > 1]
    assert not twice, "a job was completed twice"
    assert len(books.pushed) == len(set(books.pushed))
    states = Counter(str(manager.get_state(job_id)) for job_id in books.pushed)
    assert set(states) <= ({"completed", "failed"} if may_fail else {"completed"}), states
    assert counts.completed + counts.failed == counts.total >= len(books.pushed)
    check(manager._state)


IGNORED = pytest.mark.filterwarnings(
    # an exception that lands in a weak reference's callback is "ignored" by the interpreter
    "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Nothing is logged: an exception in the middle of `logging` would leave its locks taken."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def busy_switching() -> Iterator[None]:
    """Threads take turns far more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
@IGNORED
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.usefixtures("busy_switching", "quiet")
def test_exceptions_thrown_into_busy_threads_lose_and_double_no_job(
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    slow_rounds: Callable[[int, int], int],
) -> None:
    """Plain locks, because a checking one is Python code that the exception itself could tear."""
    monkeypatch.setenv("BUNQUEUE_CHECK_LOCKS", "0")
    for seed in range(slow_rounds(2, 10)):
        clock = VirtualClock()
        config = ManagerConfig(shards=1, keep_completed=None)
        with QueueManager(
            clock=clock, background=False, config=config, _ids=SeededIds(seed)
        ) as manager:
            books = Books(manager)
            bombard(books, error, slow_rounds(300, 1_000))
            # a MemoryError may also hit the encoding of a result, which fails the job for good
            close_the_books(books, clock, may_fail=error is MemoryError)


@pytest.mark.slow
@IGNORED
def test_signals_in_the_main_thread_lose_and_double_no_job(
    monkeypatch: pytest.MonkeyPatch, slow_rounds: Callable[[int, int], int], quiet: None
) -> None:
    """Real signals, as Ctrl-C sends them, beside another thread that works undisturbed."""
    monkeypatch.setenv("BUNQUEUE_CHECK_LOCKS", "0")
    dice = random.Random()
    armed = False
    landed = 0

    def interrupt(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    clock = VirtualClock()
    config = ManagerConfig(shards=1, keep_completed=None)
    before = signal.signal(signal.SIGALRM, interrupt)
    stop = threading.Event()
    try:
        with QueueManager(clock=clock, background=False, config=config) as manager:
            books, others = Books(manager), Books(manager)

            def beside() -> None:
                while not stop.is_set():
                    others.push()
                    others.work()
                    others.work()

            def work_until_hit() -> None:
                # not in the `try` itself: CPython 3.13 does not guard the jump back of a loop
                while armed:
                    books.push()
                    books.work()

            thread = threading.Thread(target=beside, daemon=True)
            thread.start()
            for _ in range(slow_rounds(2_000, 10_000)):
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-5, 4e-4))
                    work_until_hit()
                except KeyboardInterrupt:
                    landed += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            stop.set()
            thread.join(TIMEOUT)
            assert not thread.is_alive(), "the other thread hangs: a lock was lost"
            books.pushed += others.pushed
            books.applied += others.applied
            close_the_books(books, clock, may_fail=False)
    finally:
        armed = False
        stop.set()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert landed > 1_000


@pytest.mark.slow
@IGNORED
def test_a_signal_ends_a_blocked_pull_and_hands_its_wake_on(
    monkeypatch: pytest.MonkeyPatch, slow_rounds: Callable[[int, int], int], quiet: None
) -> None:
    """Main thread and another wait; the main thread leaves by Ctrl-C about when a job comes:
    one of the two has it, or it is still there for the taking, and the other never sleeps on."""
    monkeypatch.setenv("BUNQUEUE_CHECK_LOCKS", "0")
    dice = random.Random()
    armed = False

    def interrupt(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(slow_rounds(100, 500)):
            with QueueManager(background=False, config=ManagerConfig(shards=1)) as manager:
                line = threading.Semaphore(0)
                pause = dice.uniform(1e-4, 2e-3)

                def pusher(manager: QueueManager = manager, pause: float = pause) -> None:
                    line.acquire(timeout=TIMEOUT)  # noqa: B023
                    threading.Event().wait(pause)
                    manager.push("q", 1)

                pushing = threading.Thread(target=pusher, daemon=True)
                pushing.start()
                job = None
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-4, 2e-3))
                    line.release()
                    job = manager.pull("q", timeout=TIMEOUT)
                    armed = False
                except KeyboardInterrupt:
                    pass
                signal.setitimer(signal.ITIMER_REAL, 0)
                pushing.join(TIMEOUT)
                if job is None and manager.counts("q").active == 0:
                    job = manager.pull("q", timeout=TIMEOUT)
                    assert job is not None, "the job is gone"
                second = Blocked(manager)
                manager.push("q", 2)
                assert second.done.wait(TIMEOUT)
                assert second.job is not None
                assert second.job.data == 2
                check(manager._state)
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- the end of a manager on a file ----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_exception_while_a_manager_closes_charges_no_run_and_frees_the_file(
    error: type[BaseException],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the lines that seal it: whoever closes then gets the exception, and the file is whole."""
    caplog.set_level(100)
    seal = ops_close.seal
    at, hit = 0, "the start"
    while hit is not None:
        at += 11
        path = tmp_path / f"{at}.db"
        manager = QueueManager(path, background=False, config=ManagerConfig(shards=2))
        for name in ("a", "b", "c"):
            manager.push_batch(name, [("job", n) for n in range(3)])
            manager.pull_batch(name, 2)
        trap = Trap(at, error)
        sealing = [trap]

        def sealed(state: State, sealing: list[Trap] = sealing) -> None:
            with sealing.pop() if sealing else nullcontext():
                seal(state)

        monkeypatch.setattr(ops_close, "seal", sealed)
        raised = False
        try:
            manager.close()
        except error:
            raised = True
        monkeypatch.undo()
        hit = trap.hit
        assert raised is (hit is not None)
        assert manager.close(timeout=5), hit
        with QueueManager(path, background=False) as again:
            for name in ("a", "b", "c"):
                jobs = again.pull_batch(name, 10)
                assert [job.data for job in jobs] == [0, 1, 2], hit
                assert {job.attempts_made for job in jobs} == {0}, hit
            check(again._state)
