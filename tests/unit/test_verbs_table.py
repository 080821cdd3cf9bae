"""The table of docs/verbs.md, line by line: what each verb answers in each state."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bunqueue_py
from bunqueue_py import Job, JobState, Queue, QueueManager
from bunqueue_py.ops.query import check
from bunqueue_py.testing import VirtualClock

PAGE = Path(__file__).resolve().parents[2] / "docs" / "verbs.md"
STATES = (
    "waiting",
    "prioritized",
    "delayed",
    "waiting-children",
    "active",
    "completed",
    "failed",
    "unknown",
)
VERBS = {
    "remove",
    "retry",
    "promote",
    "discard",
    "update_data",
    "change_priority",
    "change_delay",
    "dlq.retry",
    "dlq.remove",
    "promote_all",
    "retry_all",
    "clean",
    "drain",
    "obliterate",
}
OF_JOBS = VERBS & {name for name in dir(Job) if not name.startswith("_")}


def lines() -> list[tuple[str, str, str, str]]:
    """(call, state, answer, state afterwards) of every line of the table."""
    _, _, table = PAGE.read_text().partition("| call | state | answer | then |\n")
    rows = []
    for line in table.splitlines()[1:]:
        if not line.startswith("|"):
            break
        call, state, answer, then = (cell.strip().strip("`") for cell in line.strip("|").split("|"))
        rows.append((call, state, answer, then))
    return rows


LINES = lines()


def test_the_table_has_a_line_for_every_verb_in_every_state() -> None:
    seen = {(call, state) for call, state, _, _ in LINES}
    assert len(seen) == len(LINES), "a line comes twice"
    calls = {call for call, _ in seen}
    assert {re.sub(r"\(.*", "", call) for call in calls} == VERBS
    assert {(call, state) for call in calls for state in STATES} <= seen
    assert {"promote", "discard", "update_data", "change_priority", "change_delay"} <= OF_JOBS


@pytest.fixture
def queue() -> Iterator[Queue]:
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        yield Queue("mail", manager)
        check(manager._state)


def prepared(queue: Queue, state: str) -> Job | str:
    """A job in that state: its id, or the pulled Job of its holder."""
    options: Any = {"delayed": {"delay": 30}, "prioritized": {"priority": 5}}
    manager: Any = queue.manager
    if state == "unknown":
        return manager.push("another", "old").id  # type: ignore[no-any-return]
    if state == "waiting-children":
        other = manager.push("another", name="other")
        return queue.add("job", "old", depends_on=[other]).id
    job = queue.add("job", "old", **options.get(state, {}))
    if state.startswith(("active", "completed", "failed")):
        held = manager.pull(queue)
        if state == "completed":
            manager.ack(held)
        elif state == "failed":
            manager.fail(held, "no", unrecoverable=True)
        elif state == "active, by its holder":
            return held  # type: ignore[no-any-return]
    return job.id


def outcome_of(call: str, names: dict[str, Any]) -> str:
    """What the call answers, as the table spells it."""
    try:
        answer = eval(f"queue.{call}", {}, names)
    except bunqueue_py.BunqueueError as error:
        return type(error).__name__
    return repr(answer).replace(f"'{names['job']}'", "job")


@pytest.mark.parametrize(("call", "state", "answer", "then"), LINES)
def test_a_verb_answers_in_each_state_what_the_table_says(
    queue: Queue, call: str, state: str, answer: str, then: str
) -> None:
    """B107, B134, B136."""
    job = prepared(queue, state)
    found = queue.manager.get_job(job if isinstance(job, str) else job.id)
    assert found is not None
    before = found.to_dict()
    public = state.partition(",")[0]
    assert public in (str(found.state), "unknown")
    assert outcome_of(call, {"queue": queue, "job": job, "state": public}) == answer
    after = queue.manager.get_job(found.id)
    if then == "the same":
        assert after is not None
        assert after.state == found.state
        if answer not in ("True",):
            assert after.to_dict() == before
    else:
        assert (JobState.UNKNOWN if after is None else after.state) == then
    listed = [one.id for one in queue.get_jobs(limit=10)]
    assert queue.counts().total == len(listed)
    assert (found.id in listed) is (after is not None and state != "unknown")


@pytest.mark.parametrize(
    ("call", "state", "answer"),
    [
        (call, state, answer)
        for call, state, answer, _ in LINES
        if re.sub(r"\(.*", "", call) in OF_JOBS and state != "unknown"
    ],
)
def test_a_job_answers_as_its_queue_does(queue: Queue, call: str, state: str, answer: str) -> None:
    job = prepared(queue, state)
    snapshot = queue.get_job(job) if isinstance(job, str) else job
    verb, _, rest = call.partition("(job")
    rest = rest.removeprefix(", ")
    try:
        got = repr(eval(f"job.{verb}({rest}", {}, {"job": snapshot}))
    except bunqueue_py.BunqueueError as error:
        got = type(error).__name__
    assert got == answer


@pytest.mark.parametrize("verb", ["retry", "remove", "promote", "discard", "change_delay"])
@pytest.mark.parametrize("job_id", ["", "no such job", "0190-\x00", "é" * 300])
def test_an_id_that_nobody_has_is_not_found(queue: Queue, verb: str, job_id: str) -> None:
    arguments = (job_id, 5) if verb == "change_delay" else (job_id,)
    with pytest.raises(bunqueue_py.JobNotFoundError) as caught:
        getattr(queue, verb)(*arguments)
    assert caught.value.job_id == job_id
