"""What a shard marks is handed over once, the latest of each, and nothing of what came and went."""

from collections.abc import Callable
from typing import cast

import pytest

from bunqueue_py.model.job import ACTIVE, COMPLETED, PENDING, Delivery, JobRecord
from bunqueue_py.model.options import Options
from bunqueue_py.model.rows import (
    DATA,
    ID,
    INLINE_BYTES,
    RESULT,
    RESULT_SIZE,
    RUN_WIDTH,
    SEQ,
    STATE,
    JobRow,
    Marks,
    full_row,
    no_marks,
    record_from,
    row_of,
)
from bunqueue_py.ops.mark import (
    MAX_STARTS,
    mark_begun,
    mark_completed,
    mark_ended,
    mark_start,
    mark_starts,
)
from bunqueue_py.ops.outcomes import mark_late, mark_ties
from bunqueue_py.shard.dirty import Dirty
from bunqueue_py.shard.queue_state import QueueState

BIG = b"x" * (INLINE_BYTES + 1)
OPTIONS = Options()


class Queue:
    name = "emails"


def record(job_id: str = "a", state: int = PENDING, data: bytes = b"{}") -> JobRecord:
    made = JobRecord(job_id, Queue, "welcome", OPTIONS, 0, data)
    made.created_ms = made.run_at_ms = made.entered_ms = 1
    made.state = state
    return made


def row(job_id: str = "a", state: int = PENDING, seq: int = 1) -> JobRow:
    return row_of(record(job_id, state), seq)


def completed(result: bytes | None, *, brought: bool = True) -> JobRow:
    made = record(state=COMPLETED)
    made.result_size = -1 if result is None else len(result)
    return row_of(made, 1, result if brought else None)


@pytest.fixture
def began() -> list[None]:
    return []


@pytest.fixture
def dirty(began: list[None]) -> Dirty:
    return Dirty(lambda: began.append(None))


def taken(dirty: Dirty) -> Marks:
    dirty.check()
    into: list[Marks] = []
    dirty.swap(into)
    dirty.check()
    return into[0] if into else no_marks()


# -- a cut -----------------------------------------------------------------------------------------


def test_the_latest_row_of_a_job_is_handed_over(dirty: Dirty) -> None:
    dirty.add(row(), b"{}")
    dirty.mark(row(state=ACTIVE))
    assert taken(dirty).jobs == {"a": row(state=ACTIVE)}


def test_what_was_handed_over_is_not_handed_over_again(dirty: Dirty) -> None:
    dirty.mark(row())
    assert taken(dirty).size() == 1
    assert taken(dirty) == no_marks()


def test_nothing_is_handed_over_where_nothing_was_marked(dirty: Dirty) -> None:
    into: list[Marks] = []
    dirty.swap(into)
    assert into == []


def test_a_cut_is_not_touched_by_what_is_marked_later(dirty: Dirty) -> None:
    dirty.mark(row("a"))
    cut = taken(dirty)
    dirty.mark(row("b"))
    dirty.tombstone("a", 2, -1)
    dirty.keep("queue", "emails", {})
    assert cut.jobs == {"a": row("a")}
    assert cut.rest == {}


# -- rows that are laid out in one go --------------------------------------------------------------


@pytest.mark.parametrize("data", [b"{}", BIG])
def test_a_plain_job_that_comes_in_is_marked_as_any_other(dirty: Dirty, data: bytes) -> None:
    made, other = record(data=data), Dirty(lambda: None)
    dirty.add_new(made, "emails", 7, 1)
    other.add(row_of(made, 7), data)
    assert dirty.fresh == other.fresh
    mine, others = taken(dirty), taken(other)
    assert {job_id: full_row(made) for job_id, made in mine.jobs.items() if made} == others.jobs
    assert mine[1:] == others[1:]


@pytest.mark.parametrize("result", [None, b"42", BIG])
@pytest.mark.parametrize("worn", [False, True])
def test_a_job_that_completes_is_marked_as_any_other(
    dirty: Dirty, result: bytes | None, worn: bool
) -> None:
    made = record(state=COMPLETED)
    made.started_ms, made.entered_ms, made.key = 2, 3, 7
    made.result_size = -1 if result is None else len(result)
    if worn:
        made.attempts_made, made.custom_id, made.unique_key = 1, "order-17", "key"
        made.need_side().stall_count = 1
    mark_completed(dirty, cast(QueueState, Queue), made, result)
    marks = taken(dirty)
    assert marks.jobs == {"a": row_of(made, 7, result)}
    assert marks.results == ({"a": BIG} if result is BIG else {})


def test_a_run_that_has_ended_leaves_nothing_for_the_cut_to_look_at(dirty: Dirty) -> None:
    runs = [Delivery.of(record(name, ACTIVE), name, None, None, None, True) for name in "abc"]
    for run in runs:
        run.record.delivery = run
        mark_start(dirty, run)
    first = runs[0].record
    first.complete(5, -1)
    mark_completed(dirty, cast(QueueState, Queue), first, None)
    assert [run.token for run in dirty.starts] == ["b", "c"]
    # not the oldest: the cut passes over it
    last = runs[2].record
    last.complete(6, -1)
    mark_completed(dirty, cast(QueueState, Queue), last, None)
    mark_starts(dirty)
    found = {job_id: row and row[STATE] for job_id, row in taken(dirty).jobs.items()}
    assert found == {"a": COMPLETED, "b": ACTIVE, "c": COMPLETED}


# -- a run of a job that came in since the cut -----------------------------------------------------


def came_in(dirty: Dirty, *job_ids: str, data: bytes = b"{}") -> list[JobRecord]:
    records = [record(job_id, data=data) for job_id in job_ids]
    for seq, made in enumerate(records, 7):
        made.key = seq
    dirty.add_lane(records, "emails", 1)
    return records


def begin(made: JobRecord, now: int = 2) -> Delivery:
    delivery = Delivery.of(made, made.id, None, None, None, True)
    made.start(delivery, now)
    return delivery


def whole(dirty: Dirty) -> dict[str, JobRow | None]:
    return {job_id: found and full_row(found) for job_id, found in taken(dirty).jobs.items()}


@pytest.mark.parametrize("data", [b"{}", BIG])
def test_jobs_of_a_batch_are_marked_as_single_ones(dirty: Dirty, data: bytes) -> None:
    other = Dirty(lambda: None)
    for made in came_in(dirty, "a", "b", data=data):
        other.add_new(made, "emails", made.key, 1)
    assert dirty.fresh == other.fresh == {"a", "b"}
    assert taken(dirty) == taken(other)


@pytest.mark.parametrize(
    ("result", "data", "short"),
    [(None, b"{}", True), (b"42", b"{}", True), (BIG, b"{}", False), (b"42", BIG, False)],
)
@pytest.mark.parametrize("batch", [False, True])
def test_the_end_of_a_job_that_came_in_since_the_cut_is_short_and_tells_all(
    dirty: Dirty, result: bytes | None, data: bytes, short: bool, batch: bool
) -> None:
    (made,) = came_in(dirty, "a", data=data)
    made.attempts_made = 3
    mark_start(dirty, begin(made))
    made.complete(5, -1 if result is None else len(result))
    if batch:
        mark_ended(dirty, cast(QueueState, Queue), [made], {} if result is None else {"a": result})
    else:
        mark_completed(dirty, cast(QueueState, Queue), made, result)
    assert not dirty.starts
    found = dirty.jobs["a"]
    assert found is not None
    assert (len(found) == RUN_WIDTH) is short
    cut = taken(dirty)
    assert full_row(found) == row_of(made, 7, result)
    assert cut.ended == {}
    assert (cut.payloads, cut.results) == (
        {"a": BIG} if data is BIG else {},
        {"a": BIG} if result is BIG else {},
    )


def test_a_run_under_way_at_the_cut_of_a_job_that_came_in_since_the_last_is_short(
    dirty: Dirty,
) -> None:
    (made,) = came_in(dirty, "a")
    mark_start(dirty, begin(made))
    mark_starts(dirty)
    found = dirty.jobs["a"]
    assert found is not None
    assert len(found) == RUN_WIDTH
    assert whole(dirty) == {"a": row_of(made, 7)}


@pytest.mark.parametrize("batch", [False, True])
def test_a_job_that_changed_otherwise_since_it_came_in_has_no_short_end(
    dirty: Dirty, batch: bool
) -> None:
    moved, worn = came_in(dirty, "a", "b")
    moved.priority = 5
    dirty.mark(row_of(moved, 7))
    worn.need_side().progress = 50
    for made in (moved, worn):
        mark_start(dirty, begin(made))
        made.complete(5, -1)
    if batch:
        mark_ended(dirty, cast(QueueState, Queue), [moved, worn], {})
    else:
        mark_completed(dirty, cast(QueueState, Queue), moved, None)
        mark_completed(dirty, cast(QueueState, Queue), worn, None)
    assert dirty.jobs == {"a": row_of(moved, 7), "b": row_of(worn, 8)}


def test_a_run_under_way_of_a_job_with_more_to_say_has_no_short_row(dirty: Dirty) -> None:
    (made,) = came_in(dirty, "a")
    made.need_side().progress = 50
    mark_start(dirty, begin(made))
    mark_starts(dirty)
    assert dirty.jobs == {"a": row_of(made, 7)}


def test_a_batch_that_ends_takes_its_own_starts_back_and_no_others(dirty: Dirty) -> None:
    first, other, last = came_in(dirty, *"abc")
    mark_begun(dirty, [begin(made) for made in (first, other, last)])
    for made in (first, last):
        made.complete(5, -1)
    mark_ended(dirty, cast(QueueState, Queue), [first, last], {})
    assert [run.token for run in dirty.starts] == ["b", "c"]
    mark_starts(dirty)
    states = {job_id: found and found[STATE] for job_id, found in whole(dirty).items()}
    assert states == {"a": COMPLETED, "b": ACTIVE, "c": COMPLETED}


def test_a_batch_of_starts_leaves_no_more_to_the_cut_than_single_ones(dirty: Dirty) -> None:
    records = came_in(dirty, *map(str, range(MAX_STARTS + 2)))
    mark_begun(dirty, [begin(made) for made in records])
    assert len(dirty.starts) == MAX_STARTS
    assert [len(found or ()) for found in dirty.jobs.values()][:3] == [RUN_WIDTH, RUN_WIDTH, 8]


def test_a_job_that_comes_runs_ends_and_goes_leaves_nothing(dirty: Dirty) -> None:
    (made,) = came_in(dirty, "a")
    mark_start(dirty, begin(made))
    made.complete(5, 2)
    mark_completed(dirty, cast(QueueState, Queue), made, b"42")
    dirty.tombstone("a", 2, 2)
    assert taken(dirty) == no_marks()


def test_a_row_without_its_result_keeps_that_of_a_short_one(dirty: Dirty) -> None:
    (made,) = came_in(dirty, "a")
    begin(made)
    made.complete(5, 2)
    mark_completed(dirty, cast(QueueState, Queue), made, b"42")
    older, short = taken(dirty), row_of(made, 7)
    Marks({"a": short}, {}, {}, {}, {}).put_over(older)
    assert older.jobs == {"a": row_of(made, 7, b"42")}


FIRST_MARKS: list[Callable[[Dirty], None]] = [
    lambda dirty: dirty.add(row(), b"{}"),
    lambda dirty: dirty.add_new(record(), "emails", 1, 1),
    lambda dirty: dirty.add_lane([record()], "emails", 1),
    lambda dirty: dirty.mark(row()),
    lambda dirty: mark_ended(dirty, cast(QueueState, Queue), [record(state=COMPLETED)], {}),
    lambda dirty: mark_completed(dirty, cast(QueueState, Queue), record(state=COMPLETED), None),
    lambda dirty: dirty.payload("a", BIG, 2),
    lambda dirty: dirty.result("a", BIG, -1),
    lambda dirty: dirty.tombstone("a", 2, -1),
    lambda dirty: dirty.keep("queue", "emails", {}),
]


@pytest.mark.parametrize("mark", FIRST_MARKS)
def test_the_first_mark_after_a_cut_is_told_and_no_other(
    dirty: Dirty, began: list[None], mark: Callable[[Dirty], None]
) -> None:
    for cuts in (1, 2):
        mark(dirty)
        dirty.mark(row("b"))
        dirty.keep("queue", "other", None)
        assert len(began) == cuts
        taken(dirty)


def test_an_exception_in_the_middle_of_the_swap_loses_no_mark(dirty: Dirty) -> None:
    class Interrupting(list[Marks]):
        def append(self, marks: Marks) -> None:
            super().append(marks)
            raise KeyboardInterrupt

    dirty.add(row("a"), b"{}")
    into = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        dirty.swap(into)
    # the writer may have "a", so that it goes must be told
    dirty.tombstone("a", 2, -1)
    dirty.mark(row("b"))
    dirty.swap(again := [])
    assert again[0].jobs == {"a": None, "b": row("b")}


def test_its_length_is_the_number_of_rows(dirty: Dirty) -> None:
    dirty.add(row_of(record(data=BIG), 1), BIG)
    dirty.result("a", BIG, -1)
    dirty.keep("queue", "emails", {})
    assert len(dirty) == 4
    assert taken(dirty).size() == 4
    assert len(dirty) == 0


# -- jobs that go ----------------------------------------------------------------------------------


def test_a_job_that_comes_and_goes_within_a_cut_leaves_nothing(dirty: Dirty) -> None:
    dirty.add(row_of(record(data=BIG), 1), BIG)
    dirty.mark(row(state=ACTIVE))
    dirty.result("a", BIG, -1)
    dirty.tombstone("a", len(BIG), len(BIG))
    assert taken(dirty) == no_marks()


def test_a_job_that_was_cut_leaves_a_tombstone(dirty: Dirty) -> None:
    dirty.add(row(), b"{}")
    taken(dirty)
    dirty.mark(row(state=ACTIVE))
    dirty.tombstone("a", 2, -1)
    assert taken(dirty).jobs == {"a": None}


def test_a_job_that_only_changed_is_no_new_one(dirty: Dirty) -> None:
    dirty.mark(row())
    dirty.tombstone("a", 2, -1)
    assert taken(dirty).jobs == {"a": None}


def test_what_stands_apart_goes_with_its_job(dirty: Dirty) -> None:
    dirty.tombstone("small", INLINE_BYTES, INLINE_BYTES)
    dirty.tombstone("big", INLINE_BYTES + 1, INLINE_BYTES + 1)
    cut = taken(dirty)
    assert cut.jobs == {"small": None, "big": None}
    assert cut.payloads == {"big": None}
    assert cut.results == {"big": None}


# -- what stands apart -----------------------------------------------------------------------------


def test_a_long_payload_is_marked_once_and_not_by_a_change_of_state(dirty: Dirty) -> None:
    dirty.add(row_of(record(data=BIG), 1), BIG)
    cut = taken(dirty)
    assert cut.payloads == {"a": BIG}
    added = cut.jobs["a"]
    assert added is not None
    assert added[DATA] is None
    dirty.mark(row_of(record(data=BIG, state=ACTIVE), 1))
    assert taken(dirty).payloads == {}


@pytest.mark.parametrize(
    ("before", "after", "marked"),
    [
        (b"{}", b"{1}", {}),
        (b"{}", BIG, {"a": BIG}),
        (BIG, b"{}", {"a": None}),
        (BIG, BIG + b"y", {"a": BIG + b"y"}),
    ],
)
def test_a_payload_that_changes_moves_in_and_out(
    dirty: Dirty, before: bytes, after: bytes, marked: dict[str, bytes | None]
) -> None:
    dirty.payload("a", after, len(before))
    assert taken(dirty).payloads == marked


def test_a_new_jobs_payload_that_shrinks_leaves_no_tombstone(dirty: Dirty) -> None:
    dirty.add(row_of(record(data=BIG), 1), BIG)
    dirty.payload("a", b"{}", len(BIG))
    dirty.mark(row())
    cut = taken(dirty)
    assert cut.payloads == {}
    assert cut.jobs["a"] == row()


@pytest.mark.parametrize(
    ("before", "after", "marked"),
    [(-1, None, {}), (-1, BIG, {"a": BIG}), (len(BIG), None, {"a": None}), (9, None, {})],
)
def test_a_result_that_stands_apart(
    dirty: Dirty, before: int, after: bytes | None, marked: dict[str, bytes | None]
) -> None:
    dirty.result("a", after, before)
    assert taken(dirty).results == marked


# -- results in the row ----------------------------------------------------------------------------


def test_a_row_without_its_result_keeps_the_one_that_was_marked(dirty: Dirty) -> None:
    dirty.mark(completed(b"42"))
    dirty.mark(completed(b"42", brought=False))
    kept = taken(dirty).jobs["a"]
    assert kept is not None
    assert kept[RESULT] == b"42"


def test_a_job_that_was_retried_does_not_get_its_old_result_back(dirty: Dirty) -> None:
    dirty.mark(completed(b"42"))
    dirty.mark(row())
    dirty.mark(completed(None))
    kept = taken(dirty).jobs["a"]
    assert kept is not None
    assert (kept[RESULT], kept[RESULT_SIZE]) == (None, -1)


def test_an_old_result_is_not_kept_beside_one_that_stands_apart(dirty: Dirty) -> None:
    dirty.mark(completed(b"42"))
    dirty.mark(completed(BIG))
    kept = taken(dirty).jobs["a"]
    assert kept is not None
    assert (kept[RESULT], kept[RESULT_SIZE]) == (None, len(BIG))


# -- jobs of which only the end is new -------------------------------------------------------------


def complete(dirty: Dirty, job_id: str = "a", result: bytes | None = None) -> JobRecord:
    made = record(job_id, COMPLETED)
    made.started_ms, made.entered_ms, made.key = 2, 3, 7
    mark_completed(dirty, cast(QueueState, Queue), made, result)
    return made


def test_a_job_that_was_handed_over_and_completes_is_known_to_have_only_ended(dirty: Dirty) -> None:
    dirty.mark(row())
    taken(dirty)
    complete(dirty)
    cut = taken(dirty)
    assert cut.ended == cut.jobs
    assert taken(dirty).ended == {}


def test_a_job_that_changed_in_another_way_since_the_cut_has_not_only_ended(dirty: Dirty) -> None:
    dirty.mark(row())
    complete(dirty)
    complete(dirty, "b")
    dirty.mark(row("b"))
    cut = taken(dirty)
    assert "a" not in cut.ended
    assert cut.jobs["b"] is not cut.ended["b"]


def test_a_job_whose_run_is_under_way_at_the_cut_has_no_other_change(dirty: Dirty) -> None:
    made = record(state=ACTIVE)
    made.delivery = Delivery.of(made, "token", None, None, None, True)
    mark_start(dirty, made.delivery)
    mark_starts(dirty)
    cut = taken(dirty)
    assert cut.ended == cut.jobs != {}
    mark_start(dirty, made.delivery)
    dirty.mark(row(seq=2))
    mark_starts(dirty)
    assert taken(dirty).ended == {}


def test_a_tied_job_whose_turn_comes_runs_and_ends_has_no_other_change(dirty: Dirty) -> None:
    made = record(state=ACTIVE)
    made.need_side().timeline = 5
    made.delivery = Delivery.of(made, "token", None, None, None, True)
    mark_late(dirty, made)
    mark_start(dirty, made.delivery)
    mark_starts(dirty)
    mark_ties(dirty)
    cut = taken(dirty)
    assert cut.ended == cut.jobs != {}
    assert cut.ended["a"] is cut.jobs["a"]
    made.state, made.delivery = COMPLETED, None
    made.started_ms, made.key = 2, 7
    mark_completed(dirty, cast(QueueState, Queue), made, None)
    cut = taken(dirty)
    assert cut.ended["a"] is cut.jobs["a"]


def test_a_tied_job_that_was_marked_otherwise_before_its_turn_is_written_whole(
    dirty: Dirty,
) -> None:
    made = record(state=PENDING)
    made.need_side().timeline = 5
    dirty.mark(row(seq=2))
    mark_late(dirty, made)
    mark_ties(dirty)
    assert taken(dirty).ended == {}


def test_what_was_not_written_yet_is_not_taken_for_written_under_a_job_that_ended() -> None:
    older, ended = Marks({"a": row("a")}, {}, {}, {}, {}), completed(None)
    Marks({"a": ended}, {}, {}, {}, {"a": ended}).put_over(older)
    assert (older.jobs, older.ended) == ({"a": ended}, {})
    apart = Marks({"b": row("b")}, {}, {}, {}, {})
    Marks({"a": ended}, {}, {}, {}, {"a": ended}).put_over(apart)
    assert apart.ended == {"a": ended}


# -- merging under newer marks ---------------------------------------------------------------------


def test_newer_marks_go_over_older_ones() -> None:
    older = Marks(
        {"a": row("a"), "b": row("b"), "c": None},
        {"a": BIG},
        {"a": BIG, "b": BIG},
        {("queue", "emails"): 1, ("queue", "other"): 1},
        {},
    )
    newer = Marks(
        {"a": row("a", ACTIVE), "c": row("c"), "d": None},
        {"a": None},
        {"b": None},
        {("queue", "emails"): 2},
        {},
    )
    newer.put_over(older)
    assert older == Marks(
        {"a": row("a", ACTIVE), "b": row("b"), "c": row("c"), "d": None},
        {"a": None},
        {"a": BIG, "b": None},
        {("queue", "emails"): 2, ("queue", "other"): 1},
        {},
    )


def test_a_result_in_flight_is_kept_under_a_newer_row_without_it() -> None:
    older = Marks({"a": completed(b"42")}, {}, {}, {}, {})
    Marks({"a": completed(b"42", brought=False)}, {}, {}, {}, {}).put_over(older)
    kept = older.jobs["a"]
    assert kept is not None
    assert kept[RESULT] == b"42"


def test_a_result_in_flight_is_dropped_under_a_newer_one_that_stands_apart() -> None:
    older = Marks({"a": completed(b"42")}, {}, {}, {}, {})
    Marks({"a": completed(BIG)}, {}, {"a": BIG}, {}, {}).put_over(older)
    kept = older.jobs["a"]
    assert kept is not None
    assert kept[RESULT] is None


# -- rows ------------------------------------------------------------------------------------------


def test_a_row_is_not_touched_by_later_changes_of_its_record() -> None:
    changing = record()
    side = changing.need_side()
    side.progress = 10
    before = row_of(changing, 7)
    side.progress = 20
    changing.priority = 9
    assert before == row_of(record_from(before, Queue), 7)
    assert (before[ID], before[SEQ], before[STATE]) == ("a", 7, PENDING)
    assert before != row_of(changing, 7)


def test_a_record_comes_back_with_a_payload_that_stood_apart() -> None:
    back = record_from(row_of(record(data=BIG), 1), Queue, BIG)
    assert back.data is BIG


def test_a_record_without_its_payload_is_not_made() -> None:
    with pytest.raises(AssertionError, match="payload of job a"):
        record_from(row_of(record(data=BIG), 1), Queue)
