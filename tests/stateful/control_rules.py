"""Rules of the machine: queues and jobs are controlled from outside."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from bunqueue_py import (
    JobFailedError,
    JobNotFoundError,
    ResultExpiredError,
    WaitTimeoutError,
)
from bunqueue_py.durations import to_ms
from bunqueue_py.testing.model import Dlq, Limits, ModelJob, Stalls
from tests.stateful.base import STATISTICS, Base, needs, seldom
from tests.stateful.choices import FILTER, GROUP, LIMIT, PICK, PRIORITY, QUEUE
from tests.stateful.compare import compare_result
from tests.stateful.run_rules import RunRules

STATES = ("waiting", "prioritized", "delayed", "active", "completed", "failed")


class JobControlRules(RunRules):
    """Verbs on one job that waits or has ended."""

    @needs(1)
    @rule(pick=PICK, verb=st.sampled_from(["promote", "discard", "remove", "retry"]))
    def on_one(self, pick: int, verb: str) -> None:
        self.tick()
        job_id = self.some_id(pick)
        self.both(
            verb,
            lambda: getattr(self.manager, verb)(job_id),
            lambda: getattr(self.model, verb)(job_id),
        )

    @needs(1, "pending")
    @rule(pick=PICK, priority=PRIORITY, lifo=st.sampled_from([None, True, False]))
    @seldom
    def change_priority(self, pick: int, priority: int, lifo: bool | None) -> None:
        self.tick()
        job_id = self.some_id(pick)
        self.both(
            "change_priority",
            lambda: self.manager.change_priority(job_id, priority, lifo),
            lambda: self.model.change_priority(job_id, priority, lifo),
        )

    @needs(1, "pending")
    @rule(pick=PICK, delay=st.sampled_from([None, 0, 0.004, 3, 60]))
    def change_delay_or_data(self, pick: int, delay: float | None) -> None:
        self.tick()
        job_id = self.some_id(pick)
        if delay is None:
            return self._update_data(job_id, None, pick % 4 == 0)
        self.both(
            "change_delay",
            lambda: self.manager.change_delay(job_id, delay),
            lambda: self.model.change_delay(job_id, to_ms(delay, "delay")),
        )


class QueueControlRules(Base):
    """Verbs on a whole queue."""

    @needs(10)
    @rule(queue=QUEUE, verb=st.sampled_from(["drain", "drain", "obliterate"]), all=st.booleans())
    def empty(self, queue: str, verb: str, all: bool) -> None:
        self.tick()
        self.both(
            verb,
            lambda: getattr(self.queues[queue], verb)(all),
            lambda: getattr(self.model, verb)(queue, all),
        )

    @needs(4)
    @rule(
        queue=QUEUE,
        verb=st.sampled_from(["promote_all", "retry_all completed", "retry_all failed"]),
        limit=LIMIT,
    )
    def on_many(self, queue: str, verb: str, limit: int | None) -> None:
        self.tick()
        name, *state = verb.split()
        self.both(
            verb,
            lambda: getattr(self.queues[queue], name)(*state, limit=limit),
            lambda: getattr(self.model, name)(queue, *state, limit=limit),
        )

    @needs(4)
    @rule(
        queue=QUEUE,
        state=st.sampled_from([state for state in STATES if state != "active"]),
        age=st.sampled_from([0, 0.5, 20]),
        limit=st.integers(0, 4),
    )
    @seldom
    def clean(self, queue: str, state: str, age: float, limit: int) -> None:
        """The oldest, as far as it is defined since when they are in that state."""
        self.tick()
        STATISTICS["clean"] += 1
        gone = [self.model.get(i) for i in self.queues[queue].clean(age, state=state, limit=limit)]
        model, bound = self.model, self.model.now - round(age * 1000)
        now, wall = model.now, model.wall
        there = [j for j in model.jobs if j.queue.name == queue and j.shown(now, wall) == state]
        sure = [job for job in there if not (job.vague or job.anchored)]
        old = [job for job in sure if job.since(now, wall) <= bound]
        assert set(gone) <= {*old, *(set(there) - set(sure))}, "cleaned, and not so old"
        assert len(gone) == limit or set(old) <= set(gone), "left, though it is old"
        assert len(gone) <= limit
        stay = [job.since(now, wall) for job in set(old) - set(gone)]
        went = [job.since(now, wall) for job in set(old) & set(gone)]
        assert max(went, default=0) <= min(stay, default=now), "not the oldest"
        for job in gone:
            model.forget(job, remember=True)


class LookRules(Base):
    """Reading."""

    @needs(3)
    @rule(
        queue=QUEUE,
        states=st.lists(st.sampled_from(STATES), unique=True, max_size=3),
        offset=st.integers(0, 4),
        limit=st.integers(0, 5),
        newest_first=st.booleans(),
    )
    @seldom
    def page_and_walk(
        self, queue: str, states: list[str], offset: int, limit: int, newest_first: bool
    ) -> None:
        """A page is a part of the whole, in either direction; a walk comes to all there are."""
        STATISTICS["get_jobs, iter_jobs"] += 1
        read = self.queues[queue].get_jobs
        whole = [job.id for job in read(states or None, limit=1000)]
        if newest_first:
            whole.reverse()
        part = read(states or None, offset=offset, limit=limit, newest_first=newest_first)
        assert [job.id for job in part] == whole[offset : offset + limit]
        found = [job.id for job in self.queues[queue].iter_jobs(states or None)]
        now, wall = self.model.now, self.model.wall
        self.model.move_due(queue)
        there = [
            job.id
            for job in self.model.jobs
            if job.queue.name == queue and (not states or job.shown(now, wall) in states)
        ]
        assert sorted(found) == sorted(there)

    @needs(3)
    @rule(pick=PICK, queue=QUEUE, custom_id=st.sampled_from(["x", "y"]))
    @seldom
    def look_up(self, pick: int, queue: str, custom_id: str) -> None:
        STATISTICS["get_result, get_job by custom id"] += 1
        found = self.manager.get_job(queue=queue, custom_id=custom_id)
        mine = self.model.by_custom_id(queue, custom_id)
        assert (found and found.id) == (mine and mine.id)
        for job_id in {self.ids[pick % len(self.ids)], self.some_id(pick)}:
            compare_result(self.manager, self.model, job_id, self.on_disk)

    @needs(3)
    @rule(pick=PICK)
    @seldom
    def wait_for(self, pick: int) -> None:
        """With no time to wait: what the outcome is, or that there is none yet."""
        job_id = self.some_id(pick)
        job = self.model.find(job_id)
        reason = None
        try:
            self.manager.wait_for(job_id, timeout=0)
            answer = "completed"
        except JobFailedError as error:
            answer, reason = "failed", error.reason
        except (ResultExpiredError, WaitTimeoutError, JobNotFoundError) as problem:
            answer = type(problem).__name__
        STATISTICS[f"wait_for: {answer}"] += 1
        if job is None:
            assert answer != "WaitTimeoutError", "nobody will ever say how it ended"
        elif job.state == "completed":
            assert answer in ("completed", "ResultExpiredError")
            if answer == "completed":
                # marks the result as used, as a look at it does
                compare_result(self.manager, self.model, job_id, self.on_disk)
        elif job.state == "failed":
            assert (answer, reason) == ("failed", job.reason)
        else:
            assert answer == "WaitTimeoutError"


class LimitRules(Base):
    """Limits and groups."""

    def limits(self, queue: str, group: str | None) -> tuple[Any, Limits]:
        its = self.queues[queue]
        if group is None:
            return its.limits, self.model.queue(queue).limits
        return its.groups[group], self.model.queue(queue).group(group)

    @needs(1)
    @rule(
        queue=QUEUE,
        group=st.one_of(st.none(), GROUP),
        most=st.sampled_from([None, 1, 2]),
        per=st.sampled_from([0.002, 3, 20]),
        ttl=st.sampled_from([None, None, 4]),
    )
    @seldom
    def set_rate_limit(
        self, queue: str, group: str | None, most: int | None, per: float, ttl: int | None
    ) -> None:
        self.tick()
        engine, mine = self.limits(queue, group)
        if most is None:
            STATISTICS["clear_rate_limit"] += 1
            engine.clear_rate_limit()
            mine.rate, mine.starts = None, []
            return
        STATISTICS["set_rate_limit"] += 1
        more = {"ttl": ttl} if ttl is not None and group is None else {}
        engine.set_rate_limit(most, per, **more)
        now = self.model.now
        mine.set_rate(now, most, round(per * 1000), now + 1000 * more["ttl"] if more else None)

    @needs(1)
    @rule(
        queue=QUEUE,
        group=st.one_of(st.none(), GROUP),
        verb=st.sampled_from(["set_concurrency", "set_concurrency", "cool_down", "pause"]),
        bound=st.sampled_from([None, 1, 2]),
    )
    @seldom
    def hold_up(self, queue: str, group: str | None, verb: str, bound: int | None) -> None:
        """Less may run of it from now on, or more again; a second pause ends the first."""
        self.tick()
        engine, mine = self.limits(queue, group)
        if verb == "set_concurrency":
            engine.set_concurrency(bound)
            mine.concurrency = bound
        elif verb == "cool_down":
            engine.cool_down(bound or 0)
            mine.cool_until = self.model.now + (bound or 0) * 1000
        else:
            mine.paused = not mine.paused
            whole = self.queues[queue] if group is None else engine
            verb = "pause" if mine.paused else "resume"
            getattr(whole, verb)()
        STATISTICS[verb + ("" if group is None else " of a group")] += 1

    @needs(1)
    @rule(queue=QUEUE, key=st.sampled_from(["k", "l"]))
    @seldom
    def release_key(self, queue: str, key: str) -> None:
        self.tick()
        self.both(
            "deduplication.release",
            lambda: self.queues[queue].deduplication.release(key),
            lambda: self.model.release_key(queue, key),
        )


DLQ = st.builds(
    Dlq,
    st.sampled_from([True, True, False]),
    st.sampled_from([2_000, 30_000]),
    st.integers(0, 2),
    st.sampled_from([None, 15_000, 600_000]),
    st.sampled_from([1, 3, 100]),
)
STALLS = st.builds(
    Stalls,
    st.sampled_from([True, True, False]),
    st.sampled_from([4_000, 30_000]),
    st.integers(0, 2),
    st.sampled_from([0, 5_000]),
)


class DeadLetterRules(Base):
    """Dead letters, and how lost runs are found."""

    @needs(1)
    @rule(queue=QUEUE, settings=st.one_of(DLQ, DLQ, STALLS))
    @seldom
    def configure(self, queue: str, settings: Dlq | Stalls) -> None:
        self.tick()
        its = self.queues[queue]
        if isinstance(settings, Stalls):
            STATISTICS["stalls.configure"] += 1
            enabled, interval, most, grace = settings
            its.stalls.configure(enabled, interval / 1000, most, grace / 1000)
            self.model.configure_stalls(queue, settings)
        else:
            STATISTICS["dlq.configure"] += 1
            age = None if settings.max_age is None else settings.max_age / 1000
            its.dlq.configure(
                settings.auto_retry,
                settings.retry_interval / 1000,
                settings.max_retries,
                age,
                settings.max_entries,
            )
            self.model.configure_dlq(queue, settings)

    @needs(1, "failed")
    @rule(pick=PICK, verb=st.sampled_from(["retry", "remove"]))
    def on_one_letter(self, pick: int, verb: str) -> None:
        self.tick()
        dead = [job.id for job in self.model.jobs if job.state == "failed"]
        job_id = dead[pick % len(dead)] if pick % 4 else self.some_id(pick)
        job = self.model.find(job_id)
        queue = "red" if job is None else job.queue.name

        def mine() -> bool:
            if verb == "retry":
                return self.model.retry(job_id, "failed")
            return self.model.remove_letter(job_id)

        self.both(f"dlq.{verb}", lambda: getattr(self.queues[queue].dlq, verb)(job_id), mine)

    def meant(self, queue: str, wanted: dict[str, Any]) -> list[ModelJob]:
        ages = {"older_than": "older", "newer_than": "newer"}
        given = {
            ages.get(name, name): value * 1000 if name in ages else value
            for name, value in wanted.items()
        }
        return self.model.letters(queue, **given)

    @needs(1, "failed")
    @rule(queue=QUEUE, wanted=FILTER, offset=st.integers(0, 2), limit=st.integers(0, 3))
    @seldom
    def entries(self, queue: str, wanted: dict[str, Any], offset: int, limit: int) -> None:
        STATISTICS["dlq.entries"] += 1
        found = self.queues[queue].dlq.entries(**wanted, offset=offset, limit=limit)
        expected = self.meant(queue, wanted)[offset : offset + limit]
        assert [entry.job.id for entry in found] == [job.id for job in expected]
        stats = self.queues[queue].dlq.stats()
        dead = self.model.of(queue, "failed")
        assert stats.total == len(dead)
        assert stats.retriable == sum(job.next_retry is not None for job in dead)
        assert stats.retried == sum(job.retry_count > 0 for job in dead)

    @needs(1, "failed")
    @rule(queue=QUEUE, wanted=FILTER, verb=st.sampled_from(["retry_all", "retry_all", "purge"]))
    def on_letters(self, queue: str, wanted: dict[str, Any], verb: str) -> None:
        self.tick()

        def mine() -> int:
            meant = self.meant(queue, wanted)
            if verb == "retry_all":
                return self.model.retry_some(meant)
            for job in meant:
                self.model.forget(job, remember=True)
            return len(meant)

        self.both(f"dlq.{verb}", lambda: getattr(self.queues[queue].dlq, verb)(**wanted), mine)
