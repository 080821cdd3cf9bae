"""What can be seen of an engine, against the reference model."""

from __future__ import annotations

from collections import Counter
from typing import Any

from bunqueue_py import Job, JobCounts, QueueManager, ResultExpiredError
from bunqueue_py.durations import moment_to_ms
from bunqueue_py.ops.query import check
from bunqueue_py.testing.model import Model, ModelJob, ModelQueue

KEYS = ("k", "l")


def compare(manager: QueueManager, model: Model) -> None:
    """Asserts that the two agree on everything, and that the engine agrees with itself."""
    check(manager._state)
    assert len(manager._state.index) == len(model.jobs), "how many jobs there are"
    for queue in model.queues.values():
        _compare_jobs(manager, model, queue)
        _compare_dead(manager, model, queue)
        _compare_limits(manager, model, queue)
        for key in KEYS:
            owner = model.key_owner(queue.name, key)
            found = manager.deduplication_owner(queue.name, key)
            assert found == (None if owner is None else owner.id), f"owner of key {key}"


def counts_of(model: Model, queue: str) -> JobCounts:
    now, wall = model.now, model.wall
    seen = Counter(job.shown(now, wall) for job in model.jobs if job.queue.name == queue)
    if model.queue(queue).limits.paused:
        seen["paused"] = seen.pop("waiting", 0) + seen.pop("prioritized", 0)
    return JobCounts(**seen)


def _compare_jobs(manager: QueueManager, model: Model, queue: ModelQueue) -> None:
    name, now, wall = queue.name, model.now, model.wall
    assert manager.counts(name) == counts_of(model, name), "counts"
    pending = model.of(name, "pending")
    assert manager.counts_per_priority(name) == Counter(job.priority for job in pending)
    there = {job.id: job for job in model.jobs if job.queue is queue}
    listed = manager.get_jobs(name, limit=1000)
    assert len(listed) == len(there), f"{len(listed)} listed, there are {len(there)}"
    latest = 0
    for seen in listed:
        job = there.pop(seen.id, None)
        assert job is not None, f"{seen.id} is listed twice, or is none of the model's"
        compare_job(seen, job, now, wall)
        if not job.vague and not (job.anchored and job.is_ready(now, wall)):
            since = job.since(now, wall)
            assert since >= latest, f"{seen.id} is listed after one that came later"
            latest = since
    _adopt_order(model, [seen.id for seen in listed if seen.state == "completed"])


def compare_job(seen: Job, job: ModelJob, now: int, wall: int) -> None:
    """A snapshot that the engine has given out against the job of the model."""
    run_at = job.run_at
    found = (
        str(seen.state),
        seen.priority,
        seen.attempts_made,
        seen.stall_count,
        seen._created_ms,
        seen._run_at_ms,
        seen._started_ms,
        seen.progress,
        seen.failed_reason,
        seen.data,
        seen.group,
        seen.custom_id,
        seen.deduplication_key,
    )
    expected = (
        job.shown(now, wall),
        job.priority,
        job.attempts_made,
        job.stalls,
        job.created,
        run_at,
        job.started,
        job.progress,
        job.reason if job.state == "failed" else None,
        job.data,
        job.group,
        job.custom_id,
        job.key,
    )
    assert found == expected, f"{seen.id}: {found} is not {expected}"
    finished = job.entered if job.state in ("completed", "failed") else None
    assert seen._finished_ms == finished, "finished_at"


def _adopt_order(model: Model, order: list[str]) -> None:
    """Where several ended in one millisecond the engine's order is as good as another; the model
    goes on with that."""
    mine = [job.id for job in model.jobs if job.id in order]
    if mine != order:
        places = [i for i, job in enumerate(model.jobs) if job.id in order]
        for i, job in zip(places, [model.get(job_id) for job_id in order], strict=True):
            model.jobs[i] = job


def _compare_dead(manager: QueueManager, model: Model, queue: ModelQueue) -> None:
    dead = model.of(queue.name, "failed")
    assert manager.dlq_len(queue.name) == len(dead)
    if not dead:
        return
    entries = manager.dlq_entries(queue.name, limit=1000)
    order = [entry.job.id for entry in entries]
    assert sorted(order) == sorted(job.id for job in dead), "who is among the dead letters"
    entered = [model.get(job_id).entered for job_id in order]
    assert entered == sorted(entered), "order of the dead letters"
    _adopt_order(model, order)
    for entry in entries:
        job = model.get(entry.job.id)
        moments = (entry.entered_at, entry.next_retry_at, entry.expires_at, entry.last_retry_at)
        assert [_ms(moment) for moment in moments] == [
            job.dead_since,
            job.next_retry,
            job.dead_until,
            job.last_retry,
        ], f"moments of dead letter {job.id}"
        assert (entry.reason, entry.retry_count) == (job.reason, job.retry_count), job.id
        causes = [attempt.reason for attempt in entry.attempts]
        assert len(causes) == len(job.history), f"attempts of {job.id}"


def _compare_limits(manager: QueueManager, model: Model, queue: ModelQueue) -> None:
    name, now, limits = queue.name, model.now, queue.limits
    status = manager.limit_status(name)
    limits.settle(now)
    rate = status.rate_limit
    found = (
        manager.is_paused(name),
        status.concurrency,
        status.active,
        None if rate is None else (rate.max, rate.per * 1000, _ms(status.rate_limit_ends_at)),
        status.used,
        _ms(status.cooling_until),
        _ms(status.opens_at),
    )
    expected = (
        limits.paused,
        limits.concurrency,
        len(model.of(name, "active")),
        limits.rate,
        limits.used(now),
        limits.cool_until if limits.cool_until > now else None,
        limits.opens(now),
    )
    assert found == expected, f"limits: {found} is not {expected}"
    live = [job for job in model.of(name, "pending", "active") if job.group is not None]
    there = {group for group, its in queue.groups.items() if its.is_set(now)}
    there |= {job.group for job in live if job.group}
    assert manager.group_names(name) == sorted(there), "groups"
    for group in there:
        pending, active, paused = manager.group_view(name, group)
        its = [job for job in live if job.group == group]
        assert pending == Counter(job.priority for job in its if job.state == "pending"), group
        assert active == sum(job.state == "active" for job in its), f"active of group {group}"
        assert paused == queue.group(group).paused, f"pause of group {group}"


def compare_result(manager: QueueManager, model: Model, job_id: str, on_disk: bool) -> None:
    """The result of the job, which reading marks as used."""
    job = model.find(job_id)
    if job is None:
        has = model.proofs.get(job_id, False)
    else:
        has = job.state == "completed" and job.result is not None
    kept = [entry for entry in model.results if entry[0] == job_id]
    expected: Any = None
    if has and kept:
        model.results.remove(kept[0])
        model.results.append(kept[0])
        expected = kept[0][1]
    elif has:
        expected = job.result if on_disk and job is not None else ResultExpiredError
    try:
        found = manager.get_result(job_id)
    except ResultExpiredError as error:
        found = type(error)
    assert found == expected, f"result of {job_id}: {found}, not {expected}"


def _ms(moment: Any) -> int | None:
    return None if moment is None else moment_to_ms(moment, "moment")
