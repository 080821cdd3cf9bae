"""Rows that go to SQLite by the column are the same as those that go value by value."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from sqlite3 import Connection
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bunqueue_py.model.job import ACTIVE, COMPLETED, PENDING
from bunqueue_py.model.links import LOOSE, MET, WAIT, Links
from bunqueue_py.model.options import Options
from bunqueue_py.model.rows import (
    ENTERED,
    INLINE_BYTES,
    NAME,
    RUN_AT,
    SEQ,
    SIDE,
    STARTED,
    STATE,
    JobRow,
    SideRow,
    full_row,
    row_of,
    side_row,
)
from bunqueue_py.model.side import Side
from bunqueue_py.storage.sqlite import schema
from bunqueue_py.storage.sqlite.packed import Columns, make_numbers, pack, pack_ended
from bunqueue_py.storage.sqlite.rows import COLUMNS, RowDecoder, RowEncoder
from bunqueue_py.storage.sqlite.statements import Statements
from tests.property.test_sqlite_rows import DEFAULT, records

PUT = Statements(32_766).put_jobs
OTHER = Options(attempts=7)
NOW = 1_893_456_000_000
# one for all: it makes one object of the same options
DECODER = RowDecoder(DEFAULT)


@contextmanager
def new_database() -> Iterator[Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        schema.create(connection)
        make_numbers(connection)
        yield connection


def put(connection: Connection, rows: list[Any]) -> None:
    values: list[Any] = []
    RowEncoder().add(rows, values)
    connection.execute(*PUT.filled(values))


def put_packed(connection: Connection, rows: list[Any]) -> None:
    packed = pack(rows, RowEncoder(), PUT.after)
    assert packed is not None
    assert connection.execute(*packed).rowcount == len(rows)


def look(connection: Connection) -> list[Any]:
    """What a job is read back as, and the kinds of all values."""
    columns, kinds = ",".join(COLUMNS), ",".join(f"typeof({column})" for column in COLUMNS)
    found = connection.execute(f"SELECT {columns} FROM jobs ORDER BY id").fetchall()
    rows = [DECODER.row(raw) for raw in found]
    return [rows, connection.execute(f"SELECT {kinds} FROM jobs ORDER BY id").fetchall()]


def job_id(i: int) -> str:
    return f"{i:036d}"


def short(i: int, data: bytes = b"{}", **other: Any) -> tuple[Any, ...]:
    row = {"queue": "q", "seq": i, "run": NOW + i, "at": NOW + i, "name": "n", "options": DEFAULT}
    return (job_id(i), *{**row, **other}.values(), data)


@settings(max_examples=12)
@given(st.lists(records(), min_size=1, max_size=4), st.booleans())
def test_rows_of_any_kind_are_the_same_packed_or_not(found: list[Any], again: bool) -> None:
    rows = [
        (job_id(i), *row_of(record, i * i, result)[1:]) for i, (record, result) in enumerate(found)
    ]
    packed = pack(rows, RowEncoder(), PUT.after)
    if packed is None:  # for such text as SQLite does not take for one
        return
    with new_database() as by_value, new_database() as by_column:
        for _ in range(1 + again):
            put(by_value, rows)
            by_column.execute(*packed)
        assert look(by_column) == look(by_value)


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"queue": "other"},
        {"name": "näme"},
        {"options": OTHER},
        {"run": NOW + 99},
        {"at": 7},
        {"data": b""},
        {"seq": 123_456_789_012},
    ],
    ids=lambda other: "-".join(other) or "alike",
)
def test_short_rows_are_the_same_packed_or_not(other: dict[str, Any]) -> None:
    rows = [short(0), short(1), short(2, **other), short(300, b"[1]")]
    with new_database() as by_value, new_database() as by_column:
        put(by_value, [full_row(row) for row in rows])
        put_packed(by_column, rows)
        assert look(by_column) == look(by_value)


def test_short_and_whole_rows_go_together() -> None:
    rows = [short(0), (*full_row(short(1))[:STATE], ACTIVE, *full_row(short(1))[STATE + 1 :])]
    with new_database() as by_value, new_database() as by_column:
        put(by_value, rows)
        put_packed(by_column, rows)
        assert look(by_column) == look(by_value)


def run(
    row: tuple[Any, ...],
    at: int = 5,
    state: int = COMPLETED,
    attempts: int = 0,
    result: bytes | None = None,
) -> tuple[Any, ...]:
    size = -1 if result is None else len(result)
    return (row, state, NOW + at, NOW + at - 2, attempts, result, size)


@pytest.mark.parametrize("waiting", [0, 1, 6])
@pytest.mark.parametrize("whole", [0, 1, 6])
@pytest.mark.parametrize(
    "runs",
    [
        [],
        [run(short(i)) for i in range(6)],
        [run(short(i), at=i) for i in range(6)],
        [run(short(i), at=i // 2) for i in range(6)],
        [run(short(i), at=i % 2, result=b"%d" % 10**i) for i in range(6)],
        [run(short(i), attempts=i, result=b"" if i else None) for i in range(3)],
        [run(short(i), state=(ACTIVE, COMPLETED)[i % 2]) for i in range(3)],
        [run(short(5 - i, name="n" * (i + 1), options=(DEFAULT, OTHER)[i % 2])) for i in range(5)],
    ],
    ids=["no", "alike", "all-other", "in-pairs", "results", "attempts", "states", "names"],
)
def test_rows_of_all_widths_go_together(runs: list[Any], whole: int, waiting: int) -> None:
    rows = [
        *(short(100 - i, bytes(i)) for i in range(waiting)),
        *runs,
        *(ended(full_row(short(i)), i, None, -1) for i in range(200, 200 + whole)),
    ]
    if not rows:
        return
    with new_database() as by_value, new_database() as by_column:
        put(by_value, rows)
        put_packed(by_column, rows)
        assert look(by_column) == look(by_value)
        found = [row[:NAME] for row in look(by_column)[0]]
        assert found == sorted(full_row(row)[:NAME] for row in rows)


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 3) | st.integers(-2, 10**13), min_size=1, max_size=12),
    st.booleans(),
)
def test_numbers_of_any_kind_are_the_same_packed(found: list[int], in_order: bool) -> None:
    numbers = sorted(found) if in_order else found
    with new_database() as connection:
        connection.execute("CREATE TABLE found (i, n, digits)")
        made = Columns(len(numbers))
        told, digits = made.numbers(numbers), made.digits(numbers)
        text = f"INSERT INTO found SELECT i,{told},''||{digits} FROM temp.numbers WHERE i<?1"
        connection.execute(text, made.values)
        query = "SELECT n,CAST(digits AS INTEGER) FROM found ORDER BY i"
        back = connection.execute(query).fetchall()
        assert back == [(number, number) for number in numbers]


def test_what_cannot_be_packed_is_left_to_the_other_way() -> None:
    whole = [ended(full_row(short(i)), i, None, -1) for i in range(2)]
    odd_id = [("short", *whole[0][1:]), whole[1]]
    half = [(*row[:NAME], "half \ud800", *row[NAME + 1 :]) for row in whole]
    for rows in (odd_id, half):
        assert pack(rows, RowEncoder(), PUT.after) is None
        assert pack_ended(rows, RowEncoder()) is None


def ended(row: JobRow, i: int, result: bytes | None, size: int) -> JobRow:
    return (
        *row[:STATE],
        COMPLETED,
        *row[STATE + 1 : ENTERED],
        NOW + 1000 + i,
        row[ENTERED],
        NOW + 500 + i,
        i % 2,
        *row[10:16],
        result,
        size,
    )


def put_over(before: list[JobRow], after: list[JobRow]) -> list[Any]:
    """What is there after those ends were written over those rows, which is the same either way."""
    with new_database() as by_value, new_database() as by_column:
        for connection in (by_value, by_column):
            put(connection, before)
        put(by_value, after)
        packed = pack_ended(after, RowEncoder())
        assert packed is not None
        assert by_column.execute(*packed).rowcount == len(after)
        found = look(by_column)
        assert found == look(by_value)
        return found


@pytest.mark.parametrize(
    "results",
    [[None] * 4, [b"1"] * 4, [b"1", b"true", b"", bytes(INLINE_BYTES)], [None, b"1", None, b"22"]],
    ids=["none", "alike", "of all lengths", "some"],
)
@pytest.mark.parametrize("name", ["n", "other"])
def test_the_end_of_jobs_is_the_same_packed_or_not(results: list[bytes | None], name: str) -> None:
    before = [full_row(short(i, bytes(i))) for i in range(3)] + [full_row(short(3, name=name))]
    sizes = [-1 if result is None else len(result) for result in results]
    after = [ended(row, i, results[i], sizes[i]) for i, row in enumerate(before)]
    assert put_over(before, after)[0][0][STATE] == COMPLETED != PENDING


@pytest.mark.parametrize("tied", [1, 4])
def test_the_end_of_tied_jobs_tells_of_the_place_that_they_came_to(tied: int) -> None:
    before = [full_row(short(i)) for i in range(4)]
    after = [ended(row, i, None, -1) for i, row in enumerate(before)]
    for i in range(tied):
        waited = Side()
        waited.timeline = NOW + i
        moved = (*after[i][:SEQ], 70 - i, *after[i][SEQ + 1 : RUN_AT], NOW - i)
        after[i] = (*moved, *after[i][RUN_AT + 1 : SIDE], side_row(waited), *after[i][SIDE + 1 :])
    put_over(before, after)


def linked(i: int, other: str, code: int = MET, **changes: Any) -> SideRow:
    """The side of a job that waited for one other, as a row has it."""
    side = Side()
    side.timeline = changes.pop("timeline", NOW + i % 3)
    side.links = Links(changes.pop("parent_id", None), WAIT)
    side.links.edges[other] = code
    for edge in changes.pop("more", ()):
        side.links.edges[edge] = MET
    for name, value in changes.items():
        setattr(side, name, value)
    return side_row(side)


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"timeline": -1},
        {"timeline": (("waiting", NOW), ("active", NOW + 1))},
        {"parent_id": "p"},
        {"more": ["another"]},
        {"tags": ("a",)},
        {"trace": "00-1"},
        {"stall_count": 1},
        {"code": LOOSE},
        {"other": 'a"b'},
        {"other": "\u00e4" * 36},
        {"other": '"' + "c" * 35},
        {"other": "short"},
        {"side": None},
        {"result": (b"[1]", 3)},
        {"started": None},
    ],
    ids=lambda odd: " ".join(odd) or "none",
)
@pytest.mark.parametrize("parent_id", [None, 'of "all"', "p\u00e4rent"])
def test_the_end_of_a_chain_is_the_same_packed_or_not(
    odd: dict[str, Any], parent_id: str | None
) -> None:
    before = [full_row(short(i)) for i in range(5)]
    after = []
    for i, row in enumerate(before):
        given = {"parent_id": parent_id, **(odd if i == 3 else {})}
        result, size = given.pop("result", (None, -1))
        other = given.pop("other", job_id(100 + i))
        end = ended(row, i, result, size)
        if "started" in given:
            # it is let go, and waits
            end = (*end[:STATE], PENDING, *end[STATE + 1 : STARTED], None, 0, *end[NAME:])
            del given["started"]
        if "side" in given:
            after.append(end)
        else:
            side = linked(i, other, **given)
            after.append((*end[:SIDE], side, *end[SIDE + 1 :]))
    put_over(before, after)


def test_the_ends_of_a_chain_are_put_together_by_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [ended(full_row(short(i)), i, None, -1) for i in range(200)]
    tied = [
        (*row[:SIDE], linked(i, job_id(i + 1000)), *row[SIDE + 1 :]) for i, row in enumerate(rows)
    ]
    # one is let go, and waits
    tied[-1] = (*tied[-1][:STARTED], None, *tied[-1][STARTED + 1 :])
    monkeypatch.setattr(RowEncoder, "metas", lambda *_: pytest.fail("row by row"))
    assert pack_ended(tied, RowEncoder()) is not None


def test_the_end_of_a_job_that_is_not_there_is_not_counted() -> None:
    rows = [ended(full_row(short(i)), i, None, -1) for i in range(3)]
    packed = pack_ended(rows, RowEncoder())
    assert packed is not None
    with new_database() as connection:
        put(connection, [full_row(short(i)) for i in range(2)])
        assert connection.execute(*packed).rowcount == 2
