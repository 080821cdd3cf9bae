"""Coroutines that wait in a harness, calls that would block for ever, immediate mode with flows and
schedulers, and ids of workers."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timedelta
from typing import Any

import pytest

from bunqueue_py import (
    BunqueueError,
    FlowNode,
    FlowProducer,
    Job,
    JobSpec,
    Repeat,
    ValidationError,
    Worker,
)
from bunqueue_py.testing import Harness, coroutines, handler_context, hang, stage


def test_a_coroutine_handler_may_wait_for_jobs_that_others_have_a_slot_for() -> None:
    with Harness() as h:
        h.worker("parts", lambda job: job.data * 10)

        async def one(job: Job) -> Any:
            return await h.manager.push("parts", 1)

        async def two(job: Job) -> Any:
            parts = [h.manager.push("parts", n) for n in (1, 2)]
            return await asyncio.gather(*(h.manager.aio.wait_for(part) for part in parts))

        h.worker("wholes", {"one": one, "two": two})
        wholes = h.queue("wholes")
        jobs = [wholes.add(name, attempts=1) for name in ("one", "two")]
        h.drain()
        assert [job.result() for job in jobs] == [10, [10, 20]]


async def _wait(job: Job) -> Any:
    return await job


def test_waits_that_together_keep_a_loop_from_ending_raise(monkeypatch: Any) -> None:
    monkeypatch.setattr(coroutines, "IDLE_PAUSE_S", 0)
    with Harness() as h:
        q = h.queue("q")
        h.worker(q, lambda job: None)

        async def main() -> None:
            await asyncio.gather(_wait(q.add("a", delay=5)), _wait(q.add("b")))

        with pytest.raises(
            BunqueueError, match=r"can never end: it is delayed.*advance\(seconds=5"
        ):
            asyncio.run(main())


def test_a_wait_goes_on_while_a_timer_or_an_executor_may_still_run_the_job(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(coroutines, "IDLE_PAUSE_S", 0)
    with Harness() as h:
        q = h.queue("q")
        h.worker(q, lambda job: job.name)

        async def by_timer() -> None:
            loop = asyncio.get_running_loop()
            moment = loop.create_future()
            loop.call_later(0.02, moment.set_result, None)
            await moment
            h.run_until_idle()

        async def by_executor() -> None:
            await asyncio.get_running_loop().run_in_executor(None, threading.Event().wait, 0.02)
            h.run_until_idle()

        async def main() -> list[Any]:
            first = await asyncio.gather(_wait(q.add("a")), by_timer())
            return first + await asyncio.gather(_wait(q.add("b")), by_executor())

        assert asyncio.run(asyncio.wait_for(main(), 20)) == ["a", None, "b", None]


def test_run_and_serve_of_a_worker_say_that_nobody_could_close_it() -> None:
    with Harness() as h:
        worker = Worker("q", lambda job: None, manager=h.manager)
        with pytest.raises(BunqueueError, match=r"run\(\) waits until the worker is closed.*start"):
            worker.run()
        with pytest.raises(BunqueueError, match=r"serve\(\) waits until the worker is closed"):
            asyncio.run(worker.serve())
        # it can be started all the same
        job = h.queue("q").add("a")
        worker.start()
        h.run_until_idle()
        h.assert_completed(job)


def test_serve_runs_beside_another_task_that_closes_it() -> None:
    with Harness() as h:
        job = h.queue("q").add("a")

        async def main() -> None:
            worker = Worker("q", lambda job: None, manager=h.manager)
            serving = asyncio.create_task(worker.serve())
            await asyncio.sleep(0)
            h.run_until_idle()
            worker.close()
            await serving

        asyncio.run(asyncio.wait_for(main(), 20))
        h.assert_completed(job)


def test_immediate_runs_flows_and_what_a_scheduler_adds_at_once() -> None:
    with Harness(immediate=True) as h:
        q = h.queue("q")
        h.worker(q, lambda job: job.name)
        flow = FlowProducer(h.manager).add(FlowNode(q, "top", children=[FlowNode(q, "leaf")]))
        h.assert_completed(flow.job)
        chain = FlowProducer(h.manager).chain([FlowNode(q, "first"), FlowNode(q, "second")])
        for job in chain:
            h.assert_completed(job)
        made = q.schedulers.upsert("s", every=60, immediately=True, job=JobSpec("tick"))
        assert made.runs == 1
        h.assert_completed(h.added(q, "tick")[0])


def test_events_of_workers_are_the_same_in_every_process() -> None:
    with Harness() as h:
        h.worker("q", lambda job: None)
        h.worker("r", lambda job: None)
        told = [event.subject for event in h.events if event.type == "worker_joined"]
    assert told == ["harness:1", "harness:2"]


def test_a_job_that_its_group_holds_back_says_what_the_group_waits_for() -> None:
    with Harness() as h:
        q = h.queue("q")
        h.worker(q, lambda job: hang() if job.group == "full" else None, concurrency=2)
        q.groups["still"].pause()
        q.groups["slow"].set_rate_limit(1, per=10)
        q.groups["full"].set_concurrency(1)
        for group in ("still", "slow", "slow", "full", "full"):
            q.add("a", group=group)
        text = str(h.run_until_idle())
        assert "run_until_idle() runs it" not in text
        assert "Its group 'still' is paused: groups['still'].resume() first" in text
        assert "limits of its group 'slow' hold it back: advance(seconds=10) reaches" in text
        assert "Its group 'full' is full, with 1 active" in text


def test_a_drain_without_an_end_says_so_and_names_what_may_go_on(monkeypatch: Any) -> None:
    monkeypatch.setattr(stage, "RUNAWAY", 50)
    with Harness() as h:
        q = h.queue("q")
        h.worker(q, lambda job: None)
        q.add("a", repeat=Repeat(every=60))
        with pytest.raises(BunqueueError, match=r"drain\(\) comes to no end.*repeat.*advance\(\)"):
            h.drain()
        h.queue("far").add("a", delay=86_400)
        h.worker("far", lambda job: None)
        q.obliterate(force=True)
        # between two moments of one that ends
        h.queue("busy").schedulers.upsert("s", every=1, job=JobSpec("tick"))
        h.worker("busy", lambda job: None)
        with pytest.raises(BunqueueError, match=r"drain\(\) comes to no end"):
            h.drain()


def test_a_job_with_a_moment_is_due_by_the_wall_clock_in_texts_too() -> None:
    with Harness() as h:
        q = h.queue("q")
        h.worker(q, lambda job: None)
        job = q.add("a", run_at=h.now + timedelta(days=1))
        h.set_wall_clock(h.now - timedelta(days=9))
        with pytest.raises(BunqueueError, match=r"due in 10 days.*advance\(days=10\) runs it"):
            job.result()
        h.advance(days=10)
        h.assert_completed(job)


def test_wrong_arguments_are_named_where_they_are_given() -> None:
    class Refusal(Exception):
        def __init__(self, code: int, text: str) -> None:
            super().__init__(code, text)

    with Harness() as h, pytest.raises(ValidationError, match="made without arguments"):
        h.fail_next("q", Refusal)
    with pytest.raises(ValidationError, match="now must carry a time zone"):
        handler_context(now=datetime(2030, 1, 1))
