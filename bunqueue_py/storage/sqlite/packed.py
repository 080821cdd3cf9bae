"""Many rows in a handful of values: a column for each, not a variable for each value.

A statement with a variable for every value costs twice: whoever binds them keeps the GIL, and
SQLite compiles a text for each number of rows, which takes it longer than writing them. Here a
column goes as one BLOB, of which SQLite cuts the pieces by the numbers of a temporary table; what
all rows have in common goes once. The text is short, is the same for any number of rows, and there
is next to nothing to bind.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import itemgetter
from sqlite3 import Connection
from typing import Any

from ...model.job import PENDING
from ...model.rows import (
    ATTEMPTS_MADE,
    CLAIM,
    CREATED,
    CUSTOM_ID,
    DATA,
    ENTERED,
    ID,
    INLINE_BYTES,
    NAME,
    OPTIONS,
    PLAIN_WIDTH,
    QUEUE,
    RESULT,
    RESULT_SIZE,
    RUN_AT,
    SEQ,
    SIDE,
    STARTED,
    STATE,
    full_row,
)
from .rows import ABSENT, COLUMNS, KEEP, RowEncoder, bindable

MIN_PACKED = 64
"""Fewer rows than this are quicker without."""

MAX_PACKED = 4096

_ID_LENGTH = 36

Packed = tuple[str, list[Any]]


class _Unfit(Exception):
    """These rows have to go the other way."""


def make_numbers(connection: Connection) -> None:
    """Makes the numbers from 0 to `MAX_PACKED` - 1, which only this connection sees."""
    connection.execute("PRAGMA temp_store = MEMORY").fetchall()
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS numbers (i INTEGER PRIMARY KEY)")
    connection.execute(
        "INSERT OR IGNORE INTO temp.numbers WITH RECURSIVE upto(i) AS "
        "(SELECT 0 UNION ALL SELECT i + 1 FROM upto WHERE i < ?) SELECT i FROM upto",
        (MAX_PACKED - 1,),
    )


class _Columns:
    """The columns of one statement, as expressions, and the values that they are made of."""

    __slots__ = ("_known", "count", "values")

    def __init__(self, count: int) -> None:
        self.count = count
        self.values: list[Any] = [count]
        self._known: list[tuple[list[int], str]] = []

    def bind(self, value: Any) -> str:
        """The same for all rows."""
        self.values.append(value)
        return f"?{len(self.values)}"

    def numbers(self, numbers: list[int]) -> str:
        """Integers."""
        first, last, count = numbers[0], numbers[-1], self.count
        if first == last and numbers.count(first) == count:
            return self.bind(first)
        if last - first == count - 1 and numbers == list(range(first, last + 1)):
            return f"(i+{self.bind(first)})"
        return f"CAST({self.digits(numbers)}AS INTEGER)"

    def digits(self, numbers: list[int]) -> str:
        """Integers as text, with spaces before the shorter ones."""
        for known, text in self._known:
            if known == numbers:
                return text
        distinct = set(numbers)
        width = max(len(str(min(distinct))), len(str(max(distinct))))
        if len(distinct) == 1:
            text = self.bind(str(numbers[0]))
        else:
            if 4 * len(distinct) < self.count:
                # as with moments, of which many are the same
                texts = {number: f"%{width}d" % number for number in distinct}
                digits = "".join(map(texts.__getitem__, numbers))
            else:
                digits = f"%{width}d" * self.count % tuple(numbers)
            text = self._piece(digits.encode(), width)
        self._known.append((numbers, text))
        return text

    def ids(self, ids: Sequence[str]) -> str:
        """Job ids, which are all of one length."""
        joined = "".join(ids)
        if set(map(len, ids)) != {_ID_LENGTH} or not joined.isascii():
            raise _Unfit
        return f"CAST({self._piece(joined.encode(), _ID_LENGTH)}AS TEXT)"

    def texts(self, texts: Sequence[Any]) -> str:
        """Texts."""
        if texts.count(texts[0]) == self.count:
            return self.bind(texts[0])
        if set(map(type, texts)) != {str}:
            raise _Unfit
        joined = "".join(texts)
        if joined.isascii():
            return f"CAST({self._pieces(joined.encode(), list(map(len, texts)))}AS TEXT)"
        blobs = [text.encode() for text in texts]
        return f"CAST({self._pieces(b''.join(blobs), list(map(len, blobs)))}AS TEXT)"

    def blobs(self, blobs: Sequence[bytes | None], absent: list[int] | int) -> str:
        """BLOBs; what stands for one that there is not is `absent`, or the number in its place."""
        missing = blobs.count(None)
        if missing == self.count:
            return self.numbers(absent) if isinstance(absent, list) else self.bind(absent)
        if not missing:
            return self._pieces(b"".join(blobs), list(map(len, blobs)))  # type: ignore[arg-type]
        text = self._pieces(
            b"".join([blob for blob in blobs if blob is not None]),
            [0 if blob is None else len(blob) for blob in blobs],
        )
        there = self.numbers([int(blob is not None) for blob in blobs])
        other = self.numbers(absent) if isinstance(absent, list) else self.bind(absent)
        return f"CASE {there} WHEN 1 THEN {text} ELSE {other} END"

    def _pieces(self, joined: bytes, lengths: list[int]) -> str:
        if not joined:
            # all are empty; SQLite would make NULL of a piece of nothing
            return self.bind(joined)
        if lengths.count(lengths[0]) == self.count:
            return self._piece(joined, lengths[0])
        starts = self.numbers(list(accumulate(lengths, initial=1))[:-1])
        return f"substr({self.bind(joined)},{starts},{self.numbers(lengths)})"

    def _piece(self, joined: bytes, width: int) -> str:
        each = self.bind(width)
        return f"substr({self.bind(joined)},i*{each}+1,{each})"


_UPSERT = f"INSERT INTO jobs({','.join(COLUMNS)})SELECT "


def count_plain(rows: Sequence[Any]) -> int:
    """How many of the rows are short ones."""
    return list(map(len, rows)).count(PLAIN_WIDTH)


def pack(rows: list[Any], encoder: RowEncoder, on_conflict: str) -> Packed | None:
    """The statement that writes those rows, and its values; `None` if they are of an odd kind."""
    columns = _Columns(len(rows))
    try:
        if count_plain(rows) == len(rows):
            found = _plain(rows, columns, encoder)
        else:
            found = _full(rows, columns, encoder)
    except _Unfit:
        return None
    text = f"{_UPSERT}{','.join(found)} FROM temp.numbers WHERE i<?1 {on_conflict}"
    return text, columns.values


def pack_ended(rows: list[Any], encoder: RowEncoder) -> Packed | None:
    """The statement that writes the run of those jobs, or its end, of which all else is in the
    file. It changes as many rows as it should, or some are missing there."""
    columns = _Columns(len(rows))
    results, sizes = map(_column, (rows, rows), (RESULT, RESULT_SIZE))
    try:
        at = columns.ids(_column(rows, ID))
        state = columns.numbers(_column(rows, STATE))
        moment = columns.numbers(_column(rows, ENTERED))
        meta = _meta(rows, sizes, columns, encoder)
        result = columns.blobs(results, _absent(results, sizes))
        place = ""
        if _column(rows, SIDE).count(None) != columns.count:
            # one that waited for other jobs, or for a wall clock, got its place when that was over
            seq, run_at = (columns.numbers(_column(rows, part)) for part in (SEQ, RUN_AT))
            place = f"seq={seq},run_at={run_at},"
    except _Unfit:
        return None
    text = (
        f"UPDATE jobs SET {place}state={state},entered={moment},meta={meta},result={result} "
        f"FROM temp.numbers WHERE i<?1 AND jobs.id={at}"
    )
    return text, columns.values


def _plain(rows: list[Any], columns: _Columns, encoder: RowEncoder) -> tuple[str, ...]:
    ids, queues, seqs, run_at, entered, names, options, data = (
        _column(rows, place) for place in range(PLAIN_WIDTH)
    )
    if not _one_head(names, options):
        return _full(rows, columns, encoder)
    return (
        columns.ids(ids),
        columns.texts(queues),
        columns.numbers(seqs),
        columns.bind(PENDING),
        columns.bind(0),
        columns.numbers(run_at),
        columns.numbers(entered),
        columns.bind(encoder.waiting(names[0], options[0])),
        columns.blobs(data, ABSENT),
        columns.bind(ABSENT),
    )


def _full(rows: list[Any], columns: _Columns, encoder: RowEncoder) -> tuple[str, ...]:
    rows = [full_row(row) if len(row) == PLAIN_WIDTH else row for row in rows]
    results, sizes = map(_column, (rows, rows), (RESULT, RESULT_SIZE))
    numbers = (columns.numbers(_column(rows, place)) for place in range(SEQ, ENTERED + 1))
    return (
        columns.ids(_column(rows, ID)),
        columns.texts(_column(rows, QUEUE)),
        *numbers,
        _meta(rows, sizes, columns, encoder),
        columns.blobs(_column(rows, DATA), ABSENT),
        columns.blobs(results, _absent(results, sizes)),
    )


_PLACES = tuple(map(itemgetter, range(RESULT_SIZE + 1)))


def _column(rows: list[Any], place: int) -> list[Any]:
    # not zip(*rows), which goes through all the rows for each value of one
    return list(map(_PLACES[place], rows))


def _absent(results: Sequence[bytes | None], sizes: list[int]) -> list[int] | int:
    if sizes.count(-1) == len(sizes):
        return ABSENT
    return [
        KEEP if result is None and 0 <= size <= INLINE_BYTES else ABSENT
        for result, size in zip(results, sizes, strict=True)
    ]


def _meta(rows: list[Any], sizes: list[int], columns: _Columns, encoder: RowEncoder) -> str:
    created, started, attempts, names, options = (
        _column(rows, place) for place in (CREATED, STARTED, ATTEMPTS_MADE, NAME, OPTIONS)
    )
    count = columns.count
    if (
        _one_head(names, options)
        and not started.count(None)
        and all(_column(rows, place).count(None) == count for place in (CUSTOM_ID, CLAIM, SIDE))
    ):
        # the end of a meta as `RowEncoder.add` makes it, put together there
        head = bindable(f"{encoder.head(names[0], options[0])},")
        if head.__class__ is not str:
            raise _Unfit
        began = f"{columns.bind(head)}||{columns.digits(created)}||','||{columns.digits(started)}"
        if attempts.count(attempts[0]) == sizes.count(sizes[0]) == count:
            return f"{began}||{columns.bind(f',{attempts[0]},{sizes[0]}]')}"
        return f"{began}||','||{columns.digits(attempts)}||','||{columns.digits(sizes)}||']'"
    return columns.texts(encoder.metas(rows))


def _one_head(names: Sequence[str], options: Sequence[Any]) -> bool:
    # options are equal only if they are one object
    return options.count(options[0]) == names.count(names[0]) == len(names)
