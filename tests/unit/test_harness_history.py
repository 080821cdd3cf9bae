"""What a harness remembers of a long test: packed, and yet as it was."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from bunqueue_py import Job, JobSpec, KeepJobs
from bunqueue_py.testing import Harness, history

PARTS = (
    "id name data state created_at run_at started_at tags token priority attempt max_attempts "
    "custom_id"
).split()


def story(h: Harness) -> dict[str, Any]:
    """Jobs that complete, fail, are kept, go; and all that can be asked of them."""
    queue = h.queue("q")

    def run(job: Job) -> Any:
        job.update_progress(50, "half")
        if job.data["n"] % 5 == 0:
            raise LookupError(f"no {job.data['n']}")
        return {"n": job.data["n"]}

    h.worker(queue, run)
    queue.schedulers.upsert("s", every=60, job=JobSpec("s", {"n": 1}, remove_on_complete=True))
    jobs = [
        queue.add(
            f"job{n % 3}",
            {"n": n},
            delay=n,
            priority=n % 4,
            attempts=1 + n % 2,
            custom_id=f"c{n}",
            tags=("a", "b")[: n % 3],
            remove_on_complete=(True, False, KeepJobs(count=2))[n % 3],
            remove_on_fail=n % 10 == 0,
        )
        for n in range(40)
    ]
    h.advance(minutes=30)
    report = h.drain(raise_errors=False)
    return {
        "events": h.events,
        "timelines": [h.timeline(job) for job in jobs],
        "added": [[getattr(job, part) for part in PARTS] for job in h.added(queue)],
        "some": [job.id for job in h.added(queue, "job1", {"n": 7})],
        "waits": [job.id for job in report.waits],
        "text": str(h),
    }


def test_what_is_packed_is_told_as_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with Harness() as h:
        plain = story(h)
        assert not h._stage.history._packed
    monkeypatch.setattr(history, "CHUNK", 4)
    monkeypatch.setattr(history, "SHARED", 13)
    monkeypatch.setattr(history, "OPEN", 2)
    with Harness() as h:
        packed = story(h)
        assert len(h._stage.history._packed) > 50
        assert len(h._stage.jobs._packed) > 10
        assert len(h._stage.history.recent) < 4
    assert packed == plain


def test_what_cannot_be_packed_is_kept_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Text(str):
        """A text of another type."""

    monkeypatch.setattr(history, "CHUNK", 2)
    monkeypatch.setattr(history, "SHARED", 13)
    monkeypatch.setattr(history, "OPEN", 1)
    with Harness() as h:
        queue = h.queue("q")
        h.worker(queue, lambda job: None)
        for n in range(9):
            queue.add("x", n, custom_id=Text(f"c{n}"), remove_on_complete=True)
            h.run_until_idle()
        assert [job.custom_id for job in h.added(queue)] == [f"c{n}" for n in range(9)]
        h._stage.history.recent.append(("progress", "q", "j", 0, 99, {"message": Text("m")}))
        h._stage.history.recent.append(("progress", "q", "j", 0, 100, {"message": "n"}))
        h._stage.history.pack()
        assert [event.message for event in h.timeline("j")] == ["m", "n"]


def test_a_failure_for_good_is_raised_wherever_it_stands_in_the_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "CHUNK", 2)
    with Harness() as h:
        queue = h.queue("q")
        h.worker(queue, {"good": lambda job: None, "bad": lambda job: 1 / 0})
        for n in range(20):
            queue.add("bad" if n == 9 else "good", delay=timedelta(seconds=n + 1), attempts=1)
        with pytest.raises(ZeroDivisionError):
            h.drain()
        assert h.drain().failed == []
