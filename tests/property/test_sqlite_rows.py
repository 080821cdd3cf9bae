"""Any job goes to SQLite and comes back as it was, no row at all breaks the reader, and marks that
are merged in any grouping come to the same."""

import json
import sqlite3
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bunqueue_py.model.backoff import Backoff
from bunqueue_py.model.claim import EXTEND, REPLACE, SKIP, AnyClaim, Claim
from bunqueue_py.model.failure import Failure
from bunqueue_py.model.job import COMPLETED, FAILED, PENDING, JobRecord
from bunqueue_py.model.options import Keep, Options
from bunqueue_py.model.rows import (
    INLINE_BYTES,
    OPTIONS,
    RESULT,
    RESULT_SIZE,
    SEQ,
    JobRow,
    Marks,
    no_marks,
    record_from,
    row_of,
)
from bunqueue_py.model.side import AttemptRow, Letter, Side
from bunqueue_py.storage.sqlite import schema
from bunqueue_py.storage.sqlite.rows import (
    COLUMNS,
    RowDecoder,
    RowEncoder,
    UndecodableRowError,
)
from bunqueue_py.storage.sqlite.statements import Statements, variable_limit
from bunqueue_py.types import FailureReason

texts = st.text(st.characters(), max_size=8)  # lone surrogates and NUL included
moments = st.integers(0, (1 << 44) - 1)
counts = st.integers(0, 1000)
blobs = st.binary(max_size=20) | st.integers(INLINE_BYTES - 1, INLINE_BYTES + 1).map(bytes)
durations = st.integers(0, 36_500 * 86_400_000)
keeps = st.booleans() | st.builds(Keep, st.none() | counts, st.none() | durations)
jitters = st.floats(0, 1)
backoffs = st.builds(
    Backoff, st.sampled_from(["exponential", "fixed"]), durations, durations, jitters
)
options = st.builds(
    Options,
    attempts=st.integers(1, 1000),
    backoff=backoffs,
    timeout_ms=st.none() | durations,
    ttl_ms=st.none() | durations,
    lifo=st.booleans(),
    durable=st.booleans(),
    remove_on_complete=keeps,
    remove_on_fail=keeps,
    stack_trace_limit=counts,
    stall_timeout_ms=st.none() | durations,
)
failures = st.builds(
    Failure, st.sampled_from(FailureReason), texts, st.lists(texts, max_size=3).map(tuple)
)
attempts = st.builds(
    AttemptRow,
    counts,
    st.none() | moments,
    moments,
    # of an earlier attempt the stack is not kept
    st.builds(Failure, st.sampled_from(FailureReason), texts, st.just(())),
)


class Queue:
    name = "emails"


@st.composite
def letters(draw: Any) -> Letter:
    letter = Letter(draw(moments))
    letter.expires_ms = draw(st.none() | moments)
    letter.next_retry_ms = draw(st.none() | moments)
    letter.auto_retries = draw(counts)
    return letter


@st.composite
def sides(draw: Any) -> Side:
    side = Side()
    side.anchored = draw(st.booleans())
    side.attempts = tuple(draw(st.lists(attempts, max_size=3)))
    side.dlq_retries = draw(counts)
    side.failure = draw(st.none() | failures)
    side.group = draw(st.none() | texts)
    side.last_retry_ms = draw(st.none() | moments)
    side.letter = draw(st.none() | letters())
    side.progress = draw(st.integers(0, 100) | st.floats(0, 100))
    side.progress_message = draw(st.none() | texts)
    side.stall_count = draw(counts)
    side.tags = tuple(draw(st.lists(texts, max_size=3)))
    steps = draw(st.none() | st.lists(st.tuples(texts, moments), max_size=3))
    side.timeline = None if steps is None else tuple(steps)[-20:]
    return side


@st.composite
def claims(draw: Any) -> AnyClaim:
    ttl_ms = draw(st.none() | durations)
    mode = draw(st.sampled_from([SKIP, EXTEND, REPLACE]))
    held, until_ms = draw(st.booleans()), draw(st.none() | moments)
    if mode == SKIP and not held and until_ms is None:
        return ttl_ms
    return Claim(ttl_ms, mode, held, until_ms)


@st.composite
def records(draw: Any) -> tuple[JobRecord, bytes | None]:
    """A record with everything in it, and the result that it completes with."""
    priority = draw(st.integers(-1_000_000, 1_000_000))
    given_options = draw(st.just(DEFAULT) | options)
    record = JobRecord("id-1", Queue, draw(texts), given_options, priority, draw(blobs))
    record.created_ms = draw(moments)
    record.entered_ms = draw(st.just(record.created_ms) | moments)
    record.run_at_ms = draw(st.just(record.created_ms) | moments)
    record.state = draw(st.integers(PENDING, FAILED))
    record.started_ms = draw(st.none() | moments)
    record.attempts_made = draw(counts)
    result = draw(st.none() | blobs) if record.state == COMPLETED else None
    record.result_size = -1 if result is None else len(result)
    record.custom_id = draw(st.none() | texts)
    record.unique_key = draw(st.none() | texts)
    record.claim = None if record.unique_key is None else draw(claims())
    record.side = draw(st.none() | sides())
    return record, result


DEFAULT = Options()


def options_of(row: JobRow) -> list[Any]:
    return [getattr(row[OPTIONS], field) for field in Options.__slots__]


@pytest.fixture(scope="module")
def connection() -> Any:
    made = sqlite3.connect(":memory:", isolation_level=None)
    schema.create(made)
    yield made
    made.close()


@settings(max_examples=50)
@given(st.lists(st.tuples(records(), moments), min_size=1, max_size=5))
def test_a_job_comes_back_from_sqlite_as_it_was(
    connection: sqlite3.Connection, made: list[tuple[tuple[JobRecord, bytes | None], int]]
) -> None:
    rows = []
    for number, ((record, result), seq) in enumerate(made):
        record.id = f"id-{number}"
        rows.append(row_of(record, seq, result))
    connection.execute("DELETE FROM jobs")
    values: list[Any] = []
    RowEncoder().add(rows, values)
    connection.execute(*Statements(variable_limit(connection)).put_jobs.filled(values))
    found = connection.execute(f"SELECT {','.join(COLUMNS)} FROM jobs ORDER BY id").fetchall()
    decoder = RowDecoder(DEFAULT)
    for ((record, result), seq), row, raw in zip(made, rows, found, strict=True):
        back = decoder.row(raw)
        assert back[:OPTIONS] == row[:OPTIONS]
        assert options_of(back) == options_of(row)
        assert back[OPTIONS + 1 :] == row[OPTIONS + 1 :]
        again = record_from(back, Queue, record.data)
        assert row_of(again, seq, result)[OPTIONS + 1 :] == row[OPTIONS + 1 :]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
side_keys = st.sampled_from(
    "anchored attempts retries failure group retried letter progress message stalls tags timeline"
    " other".split()
)
metas = st.one_of(
    st.lists(json_values, max_size=10),
    st.tuples(
        st.just("welcome"),
        st.just("") | texts,
        moments,
        st.none() | moments,
        counts,
        st.integers(-1, 9),
        st.none() | json_values,
        st.none() | json_values,
        st.none() | st.dictionaries(side_keys, json_values),
    ),
)
cells = st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | st.binary(max_size=9)


@settings(max_examples=150)
@given(st.data())
def test_no_row_breaks_the_reader(data: st.DataObject) -> None:
    good: list[Any] = ["id-1", "emails", 1, 0, 0, 1, 1, '["welcome",""]', b"{}", 0]
    column = data.draw(st.integers(0, 9))
    if data.draw(st.booleans()):
        good[column] = data.draw(cells | st.text(max_size=9))
    good[7] = data.draw(st.just(good[7]) | metas.map(json.dumps) | cells | st.text(max_size=9))
    decoder = RowDecoder(DEFAULT)
    try:
        row = decoder.row(tuple(good))
    except UndecodableRowError:
        return
    # what is let through makes a whole record, which can be written again
    values: list[Any] = []
    RowEncoder().add((row_of(record_from(row, Queue, b""), row[SEQ]),), values)
    assert len(values) == len(COLUMNS)


# -- merging ---------------------------------------------------------------------------------------


def simple_row(job_id: str, seq: int, size: int, brought: bool) -> JobRow:
    record = JobRecord(job_id, Queue, "welcome", DEFAULT, 0, b"{}")
    record.created_ms = record.run_at_ms = record.entered_ms = seq
    record.result_size = size
    if size >= 0:
        record.state = COMPLETED
    return row_of(record, seq, bytes(size) if brought and size >= 0 else None)


steps = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.none()
        | st.tuples(st.sampled_from([-1, 0, 3, INLINE_BYTES, INLINE_BYTES + 1]), st.booleans()),
        st.integers(0, 3),
    ),
    max_size=12,
)


@given(steps)
def test_marks_come_to_the_same_however_they_are_merged(
    given_steps: list[tuple[str, tuple[int, bool] | None, int]],
) -> None:
    one_by_one = no_marks()
    groups: list[Marks] = [no_marks()]
    model: dict[str, tuple[int, bytes | None] | None] = {}
    for seq, (job_id, what, jump) in enumerate(given_steps):
        if model.get(job_id, ()) is None:
            continue  # no job comes back under its old id
        before = model.get(job_id)
        if what is not None and before is not None and before[0] != what[0]:
            what = (what[0], True)  # a result that stays is the one that was there
        row = None if what is None else simple_row(job_id, seq, *what)
        if jump == 0:
            groups.append(no_marks())
        Marks({job_id: row}, {}, {}, {}, {}).put_over(one_by_one)
        Marks({job_id: row}, {}, {}, {}, {}).put_over(groups[-1])
        if row is None or what is None:
            model[job_id] = None
            continue
        result = row[RESULT]
        if result is None and before is not None and 0 <= what[0] <= INLINE_BYTES:
            result = before[1]
        model[job_id] = (what[0], result)
    together = no_marks()
    for group in groups:
        group.put_over(together)
    assert together == one_by_one
    assert {
        job_id: None if row is None else (row[RESULT_SIZE], row[RESULT])
        for job_id, row in together.jobs.items()
    } == model
