"""Any story told twice is the same, in memory and on a file, and leaves the engine in order."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bunqueue_py import Backoff, BunqueueError, Deduplication, UnrecoverableError
from bunqueue_py.ops.query import check
from bunqueue_py.testing import Harness, hang

NAMES = ("fine", "fails", "flaky", "stuck", "adds", "waits", "slow", "bare")
QUEUES = ("a", "b")

add = st.fixed_dictionaries(
    {"verb": st.just("add"), "queue": st.sampled_from(QUEUES), "name": st.sampled_from(NAMES)},
    optional={
        "delay": st.integers(0, 50),
        "priority": st.integers(0, 2),
        "attempts": st.integers(1, 3),
        "timeout": st.integers(1, 40),
        "ttl": st.integers(1, 60),
        "group": st.sampled_from(["g", "h"]),
        "lifo": st.booleans(),
        "remove_on_complete": st.booleans(),
        "durable": st.booleans(),
        "deduplication": st.builds(Deduplication, st.sampled_from(["k", "l"]), st.just(20)),
    },
)
plain = st.sampled_from(
    [
        *({"verb": verb} for verb in ("idle", "drain", "wall", "crash", "lose", "fail_next")),
        *({"verb": verb} for verb in ("pull", "pause", "resume", "expire", "limit", "worker")),
    ]
)
move = st.builds(lambda n: {"verb": "advance", "seconds": n}, st.integers(0, 120))
stories = st.lists(st.one_of(add, add, move, move, plain), max_size=30)


def tell(story: list[dict[str, Any]], storage: Path | None, *, crashes: bool) -> list[Any]:
    """Plays the story, checking the engine after each step; returns all that was seen."""
    with Harness(storage, seed=1) as h:
        seen: list[Any] = []

        def handler(job: Any) -> Any:
            seen.append((job.id, job.attempt, job.now))
            if job.name == "fails" or (job.name == "flaky" and job.attempt < 2):
                raise OSError("no")
            if job.name == "stuck" and job.attempt < 3:
                return hang()
            if job.name == "adds":
                h.queue(QUEUES[job.queue == "a"]).add("fine", delay=job.attempt)
            if job.name == "waits":
                return h.queue("b").add("fine").result(timeout=1)
            if job.name == "slow":
                h.advance(seconds=35)
            if job.name == "bare":
                raise UnrecoverableError("never")
            return job.name

        workers = [h.worker(queue, handler, concurrency=2) for queue in QUEUES]
        for step in story:
            options = {k: v for k, v in step.items() if k not in ("verb", "queue", "name")}
            queue = h.queue(step.get("queue", "a"))
            match step["verb"]:
                case "add":
                    queue.add(step["name"], backoff=Backoff.exponential(1), **options)
                case "advance":
                    h.advance(seconds=step["seconds"])
                case "idle":
                    seen.append(h.run_until_idle().runs)
                case "drain":
                    report = h.drain(raise_errors=False)
                    seen.append([job.id for job in report.waits])
                case "wall":
                    h.set_wall_clock(h.now.replace(year=2029))
                case "crash" if crashes:
                    seen.append(h.crash_and_restart())
                case "lose":
                    if workers[0] in h._stage.workers:
                        h.lose_worker(workers[0])
                case "worker":
                    workers.append(h.worker("a", handler))
                case "fail_next":
                    h.fail_next("a", "as planned")
                case "pull":
                    h.manager.pull("a", lock_duration=20)
                case "pause":
                    queue.pause()
                case "resume":
                    queue.resume()
                case "limit":
                    queue.limits.set_rate_limit(2, per=30)
                case "expire":
                    for job in queue.get_jobs("active", limit=1):
                        h.expire_lock(job)
            check(h.manager._state)
            str(h)
            for job in queue.get_jobs(limit=3):
                # whatever they say, they say it
                with suppress(AssertionError):
                    h.assert_completed(job)
                with suppress(BunqueueError):
                    job.result()
        seen += h.events
        seen.append(h.now)
        seen.append(h.manager.counts())
        return seen


@settings(max_examples=25)
@given(stories)
def test_a_story_told_twice_is_the_same(story: list[dict[str, Any]]) -> None:
    assert tell(story, None, crashes=True) == tell(story, None, crashes=True)


@pytest.mark.slow
@settings(max_examples=15)
@given(stories)
def test_a_story_on_a_file_is_the_same_every_time(story: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first = tell(story, Path(folder, "a.db"), crashes=True)
        assert first == tell(story, Path(folder, "b.db"), crashes=True)


@pytest.mark.slow
@settings(max_examples=15)
@given(stories)
def test_a_story_on_a_file_is_the_one_in_memory(story: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        on_file = tell(story, Path(folder, "a.db"), crashes=False)
        assert on_file == tell(story, None, crashes=False)
