"""Rules of the machine: jobs come in, run, and end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from bunqueue_py import (
    ANY,
    Ack,
    BulkAddError,
    GroupFullError,
    Job,
    JobSpec,
    LockError,
    Outcome,
)
from bunqueue_py.durations import to_ms
from tests.stateful.base import MOST, STATISTICS, Base, needs, seldom
from tests.stateful.choices import (
    DELAY,
    DIE,
    GROUP_CHOICE,
    HOW,
    LOCKS,
    OPTIONS,
    OWNER,
    PICK,
    QUEUE,
    RESULT,
    Chosen,
    options_of,
)


def has_room(self: Base) -> bool:
    return len(self.model.jobs) < MOST


class PushRules(Base):
    """`push`, `push_batch`."""

    def given(self, chosen: Chosen) -> dict[str, Any]:
        """The options, with a moment for `run_at`."""
        options = options_of(chosen)
        if "run_at" not in options:
            return options
        wall = self.clock.now + timedelta(milliseconds=self.clock.wall_ms() - self.model.now)
        return {**options, "run_at": wall + timedelta(seconds=options["run_at"])}

    def admitted(self, queue: str, job: Job, data: int, options: dict[str, Any]) -> None:
        """The engine has answered a push with this job: so does the model."""
        mine = self.model.push(queue, job.id, data, options)
        assert mine.id == job.id, f"{job.id} came in place of {mine.id}"
        assert job.duplicate is (mine.data != data), "duplicate"
        state = "unknown" if mine.state == "gone" else mine.shown(self.model.now, self.model.wall)
        assert str(job.state) == state, "state of what was pushed"
        STATISTICS["duplicates"] += job.duplicate
        for option in options:
            STATISTICS[f"option {option}"] += 1
        if not job.duplicate:
            self.ids.append(job.id)

    @precondition(has_room)
    @rule(queue=QUEUE, options=OPTIONS)
    def push(self, queue: str, options: Chosen) -> None:
        self.push_one(queue, options)

    @precondition(has_room)
    @rule(queue=QUEUE, options=OPTIONS)
    def push_another(self, queue: str, options: Chosen) -> None:
        self.push_one(queue, options)

    def push_one(self, queue: str, chosen: Chosen) -> None:
        self.tick()
        self.serial += 1
        options = self.given(chosen)
        try:
            job = self.queues[queue].add("job", self.serial, **options)
        except GroupFullError:
            STATISTICS["push GroupFullError"] += 1
            try:
                self.model.push(queue, "nobody", self.serial, options)
            except GroupFullError:
                return
            raise
        STATISTICS["push"] += 1
        self.admitted(queue, job, self.serial, options)

    @precondition(has_room)
    @rule(queue=QUEUE, batch=st.lists(OPTIONS, min_size=1, max_size=5))
    def push_batch(self, queue: str, batch: list[Chosen]) -> None:
        self.tick()
        entries = []
        for chosen in batch:
            self.serial += 1
            entries.append((self.serial, self.given(chosen)))
        specs = [JobSpec("job", data, **options) for data, options in entries]
        full = False
        try:
            jobs = self.queues[queue].add_bulk(specs)
        except BulkAddError as error:
            full, jobs = True, list(error.accepted)
        STATISTICS["push_batch BulkAddError" if full else "push_batch"] += 1
        for job, (data, options) in zip(jobs, entries, strict=False):
            # what came in is judged as it was then: a later one may have taken its place
            mine = self.model.push(queue, job.id, data, options)
            assert mine.id == job.id, f"{job.id} came in place of {mine.id}"
            assert job.duplicate is (mine.data != data), "duplicate"
            if not job.duplicate:
                self.ids.append(job.id)
        if full:
            data, options = entries[len(jobs)]
            try:
                self.model.push(queue, "nobody", data, options)
            except GroupFullError:
                return
            raise AssertionError("the group was not full")
        assert len(jobs) == len(batch)


class RunRules(Base):
    """`pull` and what ends a run or keeps it alive."""

    @needs(1, "pending")
    @rule(queue=QUEUE, lock=LOCKS, owner=OWNER, group=GROUP_CHOICE)
    def pull(self, queue: str, lock: float | None, owner: str | None, group: Any) -> None:
        self.tick()
        job = self.manager.pull(queue, lock_duration=lock, owner=owner, group=group)
        STATISTICS["pull" if group is ANY else "pull of a group"] += 1
        self.take(queue, [] if job is None else [job], lock, owner, group, 1)

    @needs(1, "pending")
    @rule(queue=QUEUE)
    def pull_another(self, queue: str) -> None:
        self.pull(queue, 30, None, ANY)

    @needs(1, "pending")
    @rule(queue=QUEUE, n=st.integers(2, 4), lock=LOCKS, owner=OWNER, group=GROUP_CHOICE)
    def pull_batch(
        self, queue: str, n: int, lock: float | None, owner: str | None, group: Any
    ) -> None:
        self.tick()
        jobs = self.manager.pull_batch(queue, n, lock_duration=lock, owner=owner, group=group)
        STATISTICS["pull_batch"] += 1
        self.take(queue, jobs, lock, owner, group, n)

    @needs(1, "pending")
    @rule(
        queue=QUEUE,
        n=st.integers(1, 2),
        ends=st.lists(st.sampled_from(["ack", "ack", "fail", "give up", "release"]), min_size=2),
        die=DIE,
    )
    def run_some(self, queue: str, n: int, ends: list[str], die: float) -> None:
        """What a worker does: pulls, and ends what it has pulled."""
        self.pull_batch(queue, n, 30, "w1", ANY)
        held = [job for job in self.model.jobs if job.state == "active"][-n:]
        self.tick()
        self.model.die = die
        for job, end in zip(held, ends, strict=False):
            if end == "ack":
                self._ack(job.id, job.token, job.data)
            elif end == "release":
                self._release(job.id, job.token, 0)
            else:
                self._fail(job.id, job.token, end == "give up")

    # -- verbs that ask for a token: each is also called with a wrong one -------------------------

    def _ack(self, job_id: str, token: str | None, result: Any) -> None:
        self.both(
            "ack",
            lambda: self.manager.ack(job_id, result, token=token),
            lambda: self.model.ack(job_id, token, result),
        )

    def _ack_broken(self, job_id: str, token: str | None) -> None:
        self.both(
            "ack of no result",
            lambda: self.manager.ack(job_id, object(), token=token),
            lambda: self.model.ack_broken(job_id, token),
        )

    def _ack_batch(self, items: list[tuple[str, str | None, Any]]) -> None:
        def one(job_id: str, token: str | None, result: Any) -> Outcome:
            try:
                return self.model.ack(job_id, token, result)
            except LockError:
                return Outcome(False, "not_issued")

        self.both(
            "ack_batch",
            lambda: self.manager.ack_batch([Ack(i, result, token) for i, token, result in items]),
            lambda: [one(*item) for item in items],
        )

    def _fail(self, job_id: str, token: str | None, unrecoverable: bool = False) -> None:
        self.both(
            "fail",
            lambda: self.manager.fail(job_id, "no", token=token, unrecoverable=unrecoverable),
            lambda: self.model.fail(job_id, token, unrecoverable=unrecoverable),
        )

    def _release(self, job_id: str, token: str | None, delay: float) -> None:
        self.both(
            "release",
            lambda: self.manager.release(job_id, token=token, delay=delay),
            lambda: self.model.release(job_id, token, to_ms(delay, "delay")),
        )

    def _heartbeat(self, job_id: str, token: str | None) -> None:
        self.both(
            "heartbeat",
            lambda: self.manager.heartbeat(job_id, token=token),
            lambda: self.model.heartbeat(job_id, token),
        )

    def _extend_lock(self, job_id: str, token: str | None, duration: int) -> None:
        self.both(
            "extend_lock",
            lambda: self.manager.extend_lock(job_id, duration, token=token),
            lambda: self.model.heartbeat(job_id, token, duration * 1000),
        )

    def _update_progress(self, job_id: str, token: str | None, percent: float) -> None:
        self.both(
            "update_progress",
            lambda: self.manager.update_progress(job_id, percent, token=token),
            lambda: self.model.update_progress(job_id, token, percent),
        )

    def _update_data(self, job_id: str, token: str | None, same: bool) -> None:
        job = self.model.find(job_id)
        self.serial += 1
        data = job.data if same and job is not None else self.serial
        self.both(
            "update_data",
            lambda: self.manager.update_data(job_id, data, token=token),
            lambda: self.model.update_data(job_id, token, data),
        )

    @needs(1, "active")
    @rule(pick=PICK, result=RESULT)
    def ack(self, pick: int, result: Any) -> None:
        self.tick()
        self._ack(*self.held(pick), result)

    @needs(3, "active")
    @rule(pick=PICK, result=RESULT)
    def ack_another(self, pick: int, result: Any) -> None:
        self.ack(pick, result)

    @needs(1, "active")
    @rule(picks=st.lists(st.tuples(PICK, RESULT), min_size=1, max_size=3), wrong=PICK)
    def ack_batch(self, picks: list[tuple[int, Any]], wrong: int) -> None:
        self.tick()
        items = [(*self.held(pick), result) for pick, result in picks]
        self._ack_batch([*items, (*self.not_held(wrong, "stale"), None)])

    @needs(1, "active")
    @rule(pick=PICK, unrecoverable=st.sampled_from([False, False, False, True]), die=DIE)
    def fail(self, pick: int, unrecoverable: bool, die: float) -> None:
        self.tick()
        self.model.die = die
        self._fail(*self.held(pick), unrecoverable)

    @needs(1, "active")
    @rule(pick=PICK, die=DIE)
    def fail_another(self, pick: int, die: float) -> None:
        self.fail(pick, False, die)

    @needs(1, "active")
    @rule(pick=PICK, delay=DELAY)
    def release(self, pick: int, delay: float) -> None:
        self.tick()
        self._release(*self.held(pick), delay)

    @needs(1, "active")
    @rule(
        pick=PICK,
        verb=st.sampled_from(["beat", "beat", "beat", "extend", "progress", "data", "broken"]),
    )
    def hold_on(self, pick: int, verb: str) -> None:
        """What else a handler does."""
        self.tick()
        held = self.held(pick)
        if verb == "beat":
            self._heartbeat(*held)
        elif verb == "extend":
            self._extend_lock(*held, (2, 40)[pick % 2])
        elif verb == "progress":
            self._update_progress(*held, (10, 99.5)[pick % 2])
        elif verb == "data":
            self._update_data(*held, pick % 4 == 0)
        else:
            self._ack_broken(*held)

    @needs(2, "active")
    @rule(picks=st.lists(PICK, min_size=1, max_size=3))
    @seldom
    def heartbeat_batch(self, picks: list[int]) -> None:
        """With what pulls have returned, some of it long lost."""
        self.tick()
        jobs = [list(self.pulled.values())[-1 - pick % len(self.pulled)] for pick in picks]

        def one(job: Job) -> bool:
            try:
                return self.model.heartbeat(job.id, job.token)
            except LockError:
                return False

        self.both(
            "heartbeat_batch",
            lambda: self.manager.heartbeat_batch(jobs),
            lambda: [one(job) for job in jobs],
        )

    @needs(1)
    @rule(pick=PICK, how=HOW, verb=st.integers(0, 8))
    def wrong_token(self, pick: int, how: str, verb: int) -> None:
        self.tick()
        given = self.not_held(pick, how)
        [
            lambda: self._ack(*given, 7),
            lambda: self._ack_broken(*given),
            lambda: self._ack_batch([(*given, None)]),
            lambda: self._fail(*given),
            lambda: self._release(*given, 0),
            lambda: self._heartbeat(*given),
            lambda: self._extend_lock(*given, 40),
            lambda: self._update_progress(*given, 50),
            lambda: self._update_data(*given, False),
        ][verb]()

    @needs(1, "completed", "failed")
    @rule(pick=PICK, verb=st.integers(0, 8))
    def late(self, pick: int, verb: int) -> None:
        """Whoever held a job once comes with its token."""
        self.wrong_token(pick, "stale", verb)

    @needs(2, "active")
    @rule(owner=st.sampled_from(["w1", "w2"]))
    @seldom
    def release_owner(self, owner: str) -> None:
        self.tick()
        self.both(
            "release_owner",
            lambda: self.manager.release_owner(owner),
            lambda: self.model.release_owner(owner),
        )
