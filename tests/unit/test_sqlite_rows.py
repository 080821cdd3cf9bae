"""A job's row on disk: its exact form, which older files have too, and whatever may be wrong."""

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bunqueue_py.errors import StorageError, ValidationError
from bunqueue_py.model.backoff import DEFAULT_BACKOFF, Backoff
from bunqueue_py.model.claim import EXTEND, Claim
from bunqueue_py.model.failure import Failure
from bunqueue_py.model.import_path import ByPath, checked_importable, import_path
from bunqueue_py.model.job import ACTIVE, COMPLETED, PENDING, Delivery, JobRecord
from bunqueue_py.model.links import MET, Links
from bunqueue_py.model.options import Keep, Options
from bunqueue_py.model.rows import (
    DATA,
    INLINE_BYTES,
    OPTIONS,
    RESULT,
    RESULT_SIZE,
    SIDE,
    JobRow,
    record_from,
    row_of,
    side_row,
)
from bunqueue_py.model.side import AttemptRow, Letter, Side
from bunqueue_py.storage.sqlite import schema
from bunqueue_py.storage.sqlite.meta import encode, side_parts, side_text
from bunqueue_py.storage.sqlite.recovery import stored_jobs
from bunqueue_py.storage.sqlite.rows import (
    ABSENT,
    COLUMNS,
    KEEP,
    RowDecoder,
    RowEncoder,
    UndecodableRowError,
    bindable,
    text_of,
    to_json,
)
from bunqueue_py.storage.sqlite.statements import (
    MAX_ROWS,
    Statement,
    Statements,
    size_for,
    variable_limit,
)
from bunqueue_py.types import FailureReason
from tests.storage_check import full_rows

DEFAULT = Options(max_timeline=7)


class Queue:
    name = "emails"


def new_record(options: Options = DEFAULT, data: bytes = b"{}") -> JobRecord:
    made = JobRecord("id-1", Queue, "welcome", options, 5, data)
    made.created_ms = made.run_at_ms = made.entered_ms = 1000
    return made


def encoded(row: JobRow) -> list[Any]:
    into: list[Any] = []
    RowEncoder().add((row,), into)
    return into


def stored(values: list[Any]) -> tuple[Any, ...]:
    """The values as SQLite gives them back."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.create(connection)
    connection.execute(*Statements(variable_limit(connection)).put_jobs.filled(list(values)))
    row: tuple[Any, ...] = connection.execute(f"SELECT {','.join(COLUMNS)} FROM jobs").fetchone()
    connection.close()
    return row


def there_and_back(row: JobRow) -> JobRow:
    return RowDecoder(DEFAULT).row(stored(encoded(row)))


def worn_record() -> JobRecord:
    """One that has everything there is."""
    record = new_record(Options(attempts=9, max_timeline=7))
    record.state = PENDING
    record.started_ms, record.attempts_made = 1100, 2
    record.custom_id = "invoice-7"
    record.unique_key, record.claim = "key", Claim(5000, EXTEND, True)
    record.claim.begin(1000)
    side = record.need_side()
    failure = Failure(FailureReason.TIMEOUT, "too slow", ("line 1", "line 2"))
    side.anchored = True
    side.attempts = (AttemptRow(1, None, 1050, failure), AttemptRow(2, 1100, 1200, failure))
    side.dlq_retries = 3
    side.failure = failure
    side.group = "ada"
    side.last_retry_ms = 1300
    side.letter = Letter(1250)
    side.letter.expires_ms, side.letter.next_retry_ms = 9000, 8000
    side.letter.auto_retries = 1
    side.progress, side.progress_message = 12.5, "half"
    side.stall_count = 2
    side.tags = ("a", "b")
    return record


def first_cell(connection: sqlite3.Connection, path: Path) -> int:
    """How many bytes the only row of `jobs` takes: what the first byte of its cell says."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    (page,) = connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'jobs'"
    ).fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    content = path.read_bytes()[(page - 1) * size : page * size]
    at = int.from_bytes(content[8:10], "big")
    return (content[at] & 0x7F) << 7 | content[at + 1] if content[at] & 0x80 else content[at]


# -- the form on disk: a change here is a change of the schema -------------------------------------


def test_a_plain_jobs_row_says_nothing_twice() -> None:
    assert encoded(row_of(new_record(), 3)) == [
        "id-1",
        "emails",
        3,
        PENDING,
        5,
        1000,
        1000,
        '["welcome",""' + 34 * " " + "]",
        b"{}",
        ABSENT,
    ]


def test_a_plain_job_takes_as_many_bytes_in_the_file_whatever_becomes_of_it(tmp_path: Path) -> None:
    # then SQLite writes the new row over the old one, and divides no page
    now = 1_800_000_000_000
    record = new_record()
    record.created_ms = record.run_at_ms = record.entered_ms = now
    sizes = []
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
        schema.create(connection)
        put = Statements(variable_limit(connection)).put_jobs
        for state, started in ((PENDING, None), (ACTIVE, now + 1), (COMPLETED, now + 1)):
            record.state, record.started_ms = state, started
            connection.execute(*put.filled(encoded(row_of(record, 3))))
            sizes.append(first_cell(connection, tmp_path / "jobs.db"))
    assert sizes == sizes[:1] * 3


def test_a_job_that_waited_takes_as_many_bytes_in_the_file_whatever_becomes_of_it(
    tmp_path: Path,
) -> None:
    now = 1_800_000_000_000
    record = new_record()
    record.created_ms = record.run_at_ms = now
    links = record.need_side().links = Links()
    links.add("id-0", 0, child=False)
    record.gate(now, new=True)
    sizes = []
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
        schema.create(connection)
        put = Statements(variable_limit(connection)).put_jobs
        for step in ("gated", "let go", "active", "completed"):
            if step == "let go":
                links.settle("id-0", MET)
                record.unblock(now + 1)
            elif step == "active":
                record.start(Delivery.of(record, "t", None, None, None, True), now + 2)
            elif step == "completed":
                record.complete(now + 3, -1)
            row = row_of(record, 3)
            connection.execute(*put.filled(encoded(row)))
            sizes.append(first_cell(connection, tmp_path / "jobs.db"))
            assert there_and_back(row) == row
    assert sizes == sizes[:1] * 4


def test_ties_alone_are_written_as_with_everything_else() -> None:
    side = Side()
    side.timeline = 1_800_000_000_000
    side.links = Links('a "parent"', 3)
    for job_id in ("id-0", "\ud800", 'a "name"'):
        side.links.add(job_id, 2, child=True)
    row = side_row(side)
    assert json.loads(side_text(row)) == json.loads("".join(encode(side_parts(row), 0)))


def test_a_completed_jobs_row_brings_its_result() -> None:
    record = new_record()
    record.state, record.started_ms, record.entered_ms = COMPLETED, 1100, 1200
    record.result_size = 2
    assert encoded(row_of(record, 3, b"42"))[6:] == [
        1200,
        '["welcome","",1000,1100,0,2]',
        b"{}",
        b"42",
    ]


def test_everything_else_is_in_the_meta() -> None:
    meta = json.loads(encoded(row_of(worn_record(), 3))[7])
    assert meta == [
        "welcome",
        '{"attempts":9}',
        1000,
        1100,
        2,
        -1,
        "invoice-7",
        ["key", 5000, EXTEND, True, 6000],
        {
            "anchored": True,
            "attempts": [
                [1, None, 1050, "timeout", "too slow"],
                [2, 1100, 1200, "timeout", "too slow"],
            ],
            "retries": 3,
            "failure": ["timeout", "too slow", ["line 1", "line 2"]],
            "group": "ada",
            "retried": 1300,
            "letter": [1250, 9000, 8000, 1],
            "progress": 12.5,
            "message": "half",
            "stalls": 2,
            "tags": ["a", "b"],
        },
    ]


def test_options_are_stored_where_they_differ_from_the_default() -> None:
    options = Options(
        attempts=1,
        backoff=Backoff.fixed(2, jitter=0),
        timeout_ms=5,
        ttl_ms=6,
        lifo=True,
        remove_on_complete=Keep(10, None),
        remove_on_fail=True,
        stack_trace_limit=0,
        stall_timeout_ms=7,
        durable=True,
        max_timeline=99,
    )
    text = json.loads(encoded(row_of(new_record(options), 1))[7])[1]
    assert json.loads(text) == {
        "attempts": 1,
        "backoff": ["fixed", 2000, 36_500 * 86_400_000, 0.0],
        "durable": True,
        "lifo": True,
        "remove_on_complete": [10, None],
        "remove_on_fail": True,
        "stack_trace_limit": 0,
        "stall_timeout_ms": 7,
        "timeout_ms": 5,
        "ttl_ms": 6,
    }


def test_nothing_is_bound_that_needs_an_adapter() -> None:
    values = encoded(row_of(worn_record(), 1)) + encoded(row_of(new_record(), 1))
    assert {type(value) for value in values} == {str, int, bytearray}


# -- back again ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [new_record, worn_record])
def test_a_row_comes_back_as_it_went(make: Any) -> None:
    record = make()
    row = there_and_back(row_of(record, 3))
    back = record_from(row, Queue)
    assert row_of(back, 3)[:OPTIONS] == row_of(record, 3)[:OPTIONS]
    expected = row_of(record, 3)
    if expected[SIDE] is not None:
        # of the stacks only that of the failure comes back
        side = list(expected[SIDE])
        side[1] = tuple(a._replace(failure=a.failure._replace(stack=())) for a in expected[SIDE][1])
        expected = (*expected[:SIDE], tuple(side), *expected[SIDE + 1 :])  # type: ignore[assignment]
    assert row[SIDE:] == expected[SIDE:]
    assert row[OPTIONS].attempts == record.options.attempts
    assert back.delivery is None


def test_the_bound_on_the_timeline_is_the_managers_of_now() -> None:
    record = new_record()
    record.fail(Failure(FailureReason.UNKNOWN, "no"), 1500)
    assert record.side is not None
    record.side.timeline = (*(("active", n) for n in range(9)), *(record.side.timeline or ()))
    row = there_and_back(row_of(record, 1))
    assert row[OPTIONS].max_timeline == 7
    side = record_from(row, Queue).side
    assert side is not None
    assert side.timeline is not None
    assert len(side.timeline) == 7
    assert side.timeline[-2:] == (("waiting", 1000), ("failed", 1500))


def test_jobs_of_the_same_options_share_one_object_when_they_come_back() -> None:
    decoder = RowDecoder(DEFAULT)
    rows = [stored(encoded(row_of(new_record(Options(attempts=8)), seq))) for seq in (1, 2)]
    first, second = (decoder.row(row)[OPTIONS] for row in rows)
    assert first is second
    assert decoder.row(stored(encoded(row_of(new_record(), 1))))[OPTIONS] is DEFAULT


def test_rows_of_one_name_have_their_own_options() -> None:
    rows = [row_of(new_record(Options(attempts=n)), n) for n in (3, 4, 4, 5)]
    values: list[Any] = []
    RowEncoder().add(rows, values)
    assert [json.loads(meta)[1] for meta in values[7::10]] == [
        "",
        '{"attempts":4}',
        '{"attempts":4}',
        '{"attempts":5}',
    ]


def test_a_long_payload_and_result_are_not_in_the_row() -> None:
    record = new_record(data=b"x" * (INLINE_BYTES + 1))
    record.state, record.result_size = COMPLETED, INLINE_BYTES + 1
    row = row_of(record, 1, b"y" * (INLINE_BYTES + 1))
    assert encoded(row)[8:] == [ABSENT, ABSENT]
    back = there_and_back(row)
    assert (back[DATA], back[RESULT], back[RESULT_SIZE]) == (None, None, INLINE_BYTES + 1)


def test_an_empty_payload_is_a_payload() -> None:
    record = new_record(data=b"")
    record.state, record.result_size = COMPLETED, 0
    back = there_and_back(row_of(record, 1, b""))
    assert (back[DATA], back[RESULT]) == (b"", b"")


# -- results that stay -----------------------------------------------------------------------------


def completed(result: bytes | None, size: int) -> list[Any]:
    record = new_record()
    record.state, record.result_size = COMPLETED, size
    return encoded(row_of(record, 1, result))


@pytest.mark.parametrize(
    ("then", "kept"),
    [
        (completed(None, 2), b"42"),  # the result stays
        (completed(b"7", 1), b"7"),
        (completed(None, -1), ABSENT),
        (completed(None, INLINE_BYTES + 1), ABSENT),  # it stands apart now
        (encoded(row_of(new_record(), 1)), ABSENT),  # retried
    ],
)
def test_what_becomes_of_a_result_that_is_on_disk(then: list[Any], kept: bytes | int) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.create(connection)
    put = Statements(variable_limit(connection)).put_jobs
    for values in (completed(b"42", 2), then):
        connection.execute(*put.filled(list(values)))
    assert connection.execute("SELECT result FROM jobs").fetchall() == [(kept,)]
    connection.close()


def test_a_result_that_was_to_stay_and_is_not_there_is_none() -> None:
    values = completed(None, 2)
    assert values[-1] == KEEP
    assert RowDecoder(DEFAULT).row(stored(values))[RESULT] is None


# -- odd text --------------------------------------------------------------------------------------

ODD = ["naïve", "日本語", "😀", "a\ud800b", "\ud83d\ude00", "\udfff", "nul\0nul", "\u2028", '"\\']


@pytest.mark.parametrize("text", ODD)
def test_odd_text_comes_back_exactly(text: str) -> None:
    record = worn_record()
    assert record.side is not None
    record.name = record.custom_id = record.unique_key = record.side.group = text
    record.side.tags = (text, text)
    record.side.progress_message = text
    record.side.failure = Failure(FailureReason.UNKNOWN, text, (text,))
    record.side.attempts = ()
    record.options = DEFAULT
    assert there_and_back(row_of(record, 1)) == row_of(record, 1)


@pytest.mark.parametrize("text", ODD)
def test_odd_text_in_a_plain_row_comes_back_exactly(text: str) -> None:
    record = new_record()
    record.name = text
    assert there_and_back(row_of(record, 1)) == row_of(record, 1)


@pytest.mark.parametrize("text", [*ODD, "", "plain"])
def test_keys_and_bodies_of_the_rest_come_back_exactly(text: str) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.create(connection)
    make = Statements(variable_limit(connection))
    for body in ("first", {"text": text}):
        connection.execute(*make.put_rest.filled(["held_key", bindable(text), to_json(body)]))
    rows = connection.execute("SELECT key, body FROM rest").fetchall()
    assert [(text_of(k), json.loads(text_of(b))) for k, b in rows] == [(text, {"text": text})]
    connection.execute(*make.drop_rest.filled(["held_key", bindable(text)]))
    assert connection.execute("SELECT COUNT(*) FROM rest").fetchone() == (0,)
    connection.close()


# -- back-off by import path -----------------------------------------------------------------------


def at_the_top(attempt: int, error: BaseException | str) -> float:
    return attempt + 0.5


class Rules:
    @staticmethod
    def linear(attempt: int, error: BaseException | str) -> float:
        return float(attempt)

    def bound(self, attempt: int, error: BaseException | str) -> float:
        return 1.0


def inside() -> Any:
    def rule(attempt: int, error: BaseException | str) -> float:
        return 1.0

    return rule


@pytest.mark.parametrize("fn", [at_the_top, Rules.linear, len])
def test_a_function_at_the_top_of_a_module_is_kept_by_its_path(fn: Any) -> None:
    checked_importable(fn, "backoff")
    path = import_path(fn)
    assert path is not None
    row = there_and_back(row_of(new_record(Options(backoff=Backoff.custom(fn))), 1))
    assert row[OPTIONS].backoff == Backoff("custom", fn=ByPath(path))


def test_a_function_that_came_back_is_called_and_is_written_again_as_it_was() -> None:
    first = row_of(new_record(Options(backoff=Backoff.custom(at_the_top))), 1)
    back = there_and_back(first)
    assert back[OPTIONS].backoff.wait_ms(3, "error", lambda: 0.5) == 3500
    assert encoded(back) == encoded(first)


@pytest.mark.parametrize("fn", [lambda attempt, error: 1, inside(), Rules().bound, ModuleType("x")])
def test_a_function_without_a_path_is_refused_where_that_is_asked(fn: Any) -> None:
    with pytest.raises(ValidationError, match="backoff must be a function at the top of a module"):
        checked_importable(fn, "backoff")


def test_a_job_whose_function_has_no_path_is_kept_with_the_default_rule() -> None:
    row = row_of(new_record(Options(attempts=5, backoff=Backoff.custom(lambda n, e: 1))), 1)
    back = there_and_back(row)[OPTIONS]
    assert (back.attempts, back.backoff) == (5, DEFAULT_BACKOFF)


def test_a_function_that_is_gone_gives_way_to_the_default_rule(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = ModuleType("some_rules")
    exec("def rule(attempt, error): return 1", module.__dict__)
    monkeypatch.setitem(sys.modules, "some_rules", module)
    row = row_of(new_record(Options(backoff=Backoff.custom(module.rule))), 1)
    values = encoded(row)
    monkeypatch.delitem(sys.modules, "some_rules")
    back = RowDecoder(DEFAULT).row(stored(values))
    assert back[OPTIONS].backoff.wait_ms(1, "error", lambda: 0.5) == 1000
    assert "No module named 'some_rules'" in caplog.text
    assert encoded(back) == values  # it is still known, should it come back


# -- what cannot be understood ---------------------------------------------------------------------


def broken(**columns: Any) -> tuple[Any, ...]:
    good = dict(zip(COLUMNS, stored(encoded(row_of(new_record(), 3))), strict=True))
    return tuple({**good, **columns}.values())


def with_meta(*parts: Any) -> tuple[Any, ...]:
    return broken(meta=json.dumps(parts))


PLAIN = ["welcome", "", 1000, None, 0, -1]
WRONG_ROWS = {
    "id is no text": broken(id=b"\xff"),
    "queue is no text": broken(queue=7),
    "seq is text": broken(seq="many"),
    "seq is too large": broken(seq=1 << 44),
    "seq is negative": broken(seq=-1),
    "no such state": broken(state=5),
    "state is a float": broken(state=1.5),
    "priority out of bounds": broken(priority=1_000_001),
    "run_at is nothing": broken(run_at=None),
    "entered is negative": broken(entered=-1),
    "meta is nothing": broken(meta=None),
    "meta is a number": broken(meta=7),
    "meta is empty": broken(meta=""),
    "meta is cut off": broken(meta='["welcome"'),
    "meta is no list": broken(meta='{"name": 1}'),
    "meta is no UTF-8": broken(meta=b'["\xff",""]'),
    "meta is too deep": broken(meta="[" * 200_000),
    "meta has a huge number": broken(meta='["welcome","",' + "9" * 5000 + "]"),
    "meta has too many parts": with_meta(*PLAIN, None, None, None, None),
    "meta has too few parts": with_meta("welcome"),
    "name is a number": with_meta(1, ""),
    "options are a number": with_meta("welcome", 1),
    "options are a list": with_meta("welcome", []),
    "options are no JSON": with_meta("welcome", "{"),
    "options are unknown": with_meta("welcome", '{"colour":"red"}'),
    "an option is of the wrong kind": with_meta("welcome", '{"attempts":"5"}'),
    "an option is a bool": with_meta("welcome", '{"attempts":true}'),
    "a back-off of no kind": with_meta("welcome", '{"backoff":["random",1,1,0]}'),
    "a back-off with too few numbers": with_meta("welcome", '{"backoff":["fixed",1]}'),
    "a back-off with too much jitter": with_meta("welcome", '{"backoff":["fixed",1,1,2]}'),
    "a back-off with no jitter": with_meta("welcome", '{"backoff":["fixed",1,1,NaN]}'),
    "created is text": with_meta("welcome", "", "then", None, 0, -1),
    "started is a bool": with_meta("welcome", "", 1000, True, 0, -1),
    "attempts are negative": with_meta("welcome", "", 1000, None, -1, -1),
    "size is a float": with_meta("welcome", "", 1000, None, 0, 1.0),
    "custom id is a number": with_meta(*PLAIN, 7, None, None),
    "claim is text": with_meta(*PLAIN, None, "key", None),
    "claim without a mode": with_meta(*PLAIN, None, ["key", None, 9, False, None], None),
    "claim with a number for hold": with_meta(*PLAIN, None, ["key", None, 0, 0, None], None),
    "claim with a number for its key": with_meta(*PLAIN, None, [1, None, 0, False, None], None),
    "side is a list": with_meta(*PLAIN, None, None, []),
    "side has more": with_meta(*PLAIN, None, None, {"colour": "red"}),
    "group is a number": with_meta(*PLAIN, None, None, {"group": 1}),
    "tags are text": with_meta(*PLAIN, None, None, {"tags": "abc"}),
    "a tag is a number": with_meta(*PLAIN, None, None, {"tags": [1]}),
    "anchored is a number": with_meta(*PLAIN, None, None, {"anchored": 1}),
    "progress is beyond all": with_meta(*PLAIN, None, None, {"progress": 101}),
    "progress is not a number": broken(
        meta='["welcome","",1000,null,0,-1,null,null,{"progress":NaN}]'
    ),
    "a failure for no reason": with_meta(*PLAIN, None, None, {"failure": ["none", "x", []]}),
    "a failure without a stack": with_meta(*PLAIN, None, None, {"failure": ["timeout", "x"]}),
    "an attempt too short": with_meta(*PLAIN, None, None, {"attempts": [[1, 2]]}),
    "a letter too long": with_meta(*PLAIN, None, None, {"letter": [1, 2, 3, 4, 5]}),
    "a step without a moment": with_meta(*PLAIN, None, None, {"timeline": [["waiting"]]}),
    "data is text": broken(data="{}"),
    "data is a float": broken(data=1.5),
    "data is a number": broken(data=7),
    "result is text": broken(result="42"),
}


@pytest.mark.parametrize("raw", WRONG_ROWS.values(), ids=WRONG_ROWS)
def test_a_row_that_cannot_be_understood_says_so_and_is_kept_as_it_is(raw: Any) -> None:
    decoder = RowDecoder(DEFAULT)
    decoder.row(broken())  # the short way is open
    with pytest.raises(UndecodableRowError, match="cannot be understood") as caught:
        decoder.row(raw)
    assert caught.value.raw is raw
    assert isinstance(caught.value, StorageError)
    assert decoder.row(broken())[DATA] == b"{}"  # and the next one is not the worse for it


class Told:
    """Stands for a connection to a file with those rows."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def execute(self, statement: str, parameters: Any = ()) -> Any:
        if "COUNT" in statement:
            return SimpleNamespace(fetchone=lambda: (len(self.rows),))
        return iter(self.rows) if "FROM jobs" in statement else SimpleNamespace(fetchone=list)


@pytest.mark.parametrize("raw", WRONG_ROWS.values(), ids=WRONG_ROWS)
def test_a_row_among_many_that_cannot_be_understood_costs_no_other(raw: Any) -> None:
    good, others = broken(), broken(priority=7)
    told: Any = Told([good, good, raw, good, others, good])
    found = full_rows(stored_jobs(told, RowDecoder(DEFAULT), "jobs.db"))
    assert isinstance(found.pop(2), UndecodableRowError)
    decoder = RowDecoder(DEFAULT)
    assert found == [decoder.row(row) for row in (good, good, good, others, good)]


# -- statements ------------------------------------------------------------------------------------


def test_sizes_are_few_and_fill_up_little() -> None:
    sizes = {size_for(rows) for rows in range(1, MAX_ROWS + 1)}
    assert sorted(sizes)[:8] == [1, 2, 3, 4, 6, 8, 12, 16]
    assert len(sizes) == 22
    assert all(rows <= size_for(rows) <= rows * 1.5 for rows in range(1, MAX_ROWS + 1))


def test_values_are_filled_up_with_the_last_row() -> None:
    put = Statement("INSERT INTO t VALUES", "(?,?)", "", 999)
    text, values = put.filled(list("aabbccddee"))
    assert text == "INSERT INTO t VALUES(?,?),(?,?),(?,?),(?,?),(?,?),(?,?)"
    assert "".join(values) == "aabbccddeeee"


def test_a_text_is_made_once_for_each_size() -> None:
    put = Statement("x", "(?)", "", 999)
    assert put.filled([1, 2, 3, 4, 5])[0] is put.filled([1, 2, 3, 4, 5, 6])[0]


@pytest.mark.parametrize("variables", [10, 25, 999, 32_766, 250_000])
def test_no_statement_has_more_variables_than_are_allowed(variables: int) -> None:
    put = Statements(variables).put_jobs
    assert 1 <= put.max_rows <= MAX_ROWS
    text, values = put.filled([0] * put.width * put.max_rows)
    assert text.count("?") == len(values) == put.width * put.max_rows <= variables


def test_too_few_variables_for_one_row_is_an_error() -> None:
    with pytest.raises(ValueError, match="9 variables are too few for 10 columns"):
        Statements(9)


@pytest.mark.slow
def test_sqlite_takes_as_many_variables_as_it_says() -> None:
    connection = sqlite3.connect(":memory:")
    limit = variable_limit(connection)
    assert limit >= 999
    connection.execute(f"SELECT 1 IN ({','.join('?' * limit)})", [1] * limit).fetchone()
    with pytest.raises(sqlite3.OperationalError, match="too many SQL variables"):
        connection.execute(f"SELECT 1 IN ({','.join('?' * (limit + 1))})", [1] * (limit + 1))
    connection.close()


def test_where_the_limit_cannot_be_asked_for_the_compile_options_tell_it() -> None:
    class Old:
        def __init__(self, options: list[str]) -> None:
            self.options = options

        def execute(self, text: str) -> list[tuple[str]]:
            assert text == "PRAGMA compile_options"
            return [(option,) for option in self.options]

    assert variable_limit(Old(["THREADSAFE=1", "MAX_VARIABLE_NUMBER=5000"])) == 5000  # type: ignore[arg-type]
    assert variable_limit(Old(["THREADSAFE=1"])) == 32_766  # type: ignore[arg-type]


def test_an_active_job_comes_back_active_and_without_a_delivery() -> None:
    record = new_record()
    record.state, record.started_ms = ACTIVE, 1100
    back = record_from(there_and_back(row_of(record, 1)), Queue)
    assert (back.state, back.started_ms, back.delivery) == (ACTIVE, 1100, None)
