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
    PRIORITY,
    QUEUE,
    RESULT,
    RESULT_SIZE,
    RUN_AT,
    RUN_WIDTH,
    SEQ,
    SIDE,
    STARTED,
    STATE,
)
from .meta import lone_ties
from .rows import ABSENT, COLUMNS, KEEP, UNSTARTED, RowEncoder, bindable

MIN_PACKED = 64
"""Fewer rows than this are quicker without."""

MAX_PACKED = 4096

_ID_LENGTH = 36

_MAX_RUNS = 4
"""Where the same numbers stand side by side, and there are no more than so many, it is told up to
which row each goes."""

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


class Columns:
    """The columns of one statement, as expressions, and the values that they are made of."""

    __slots__ = ("_known", "count", "values")

    def __init__(self, count: int) -> None:
        self.count = count
        self.values: list[Any] = [count]
        self._known: list[tuple[list[int], tuple[str, type]]] = []

    def bind(self, value: Any) -> str:
        """The same for all rows."""
        self.values.append(value)
        return f"?{len(self.values)}"

    def numbers(self, numbers: list[int]) -> str:
        """Integers."""
        first, last, count = numbers[0], numbers[-1], self.count
        if last - first == count - 1 > 0 and numbers == list(range(first, last + 1)):
            return f"(i+{self.bind(first)})"
        text, kind = self._told(numbers)
        return text if kind is int else f"CAST({text}AS INTEGER)"

    def digits(self, numbers: list[int]) -> str:
        """Integers as what becomes text beside text, with spaces before the shorter ones."""
        return self._told(numbers)[0]

    def _told(self, numbers: list[int]) -> tuple[str, type]:
        for known, told in self._known:
            if known == numbers:
                return told
        text = self._alike(numbers)
        told = (text, int) if text else (self._digits(numbers), str)
        self._known.append((numbers, told))
        return told

    def _digits(self, numbers: list[int]) -> str:
        distinct = set(numbers)
        least, most = str(min(distinct)), str(max(distinct))
        width = max(len(least), len(most))
        if 4 * len(distinct) < self.count:
            # as with moments, of which many are the same
            texts = {number: f"%{width}d" % number for number in distinct}
            return self._piece("".join(map(texts.__getitem__, numbers)).encode(), width)
        if len(least) == len(most) and least[0] != "-":
            # a list is shown in a third of the time that a format takes
            return self._piece(str(numbers).encode(), width, first=2, step=width + 2)
        return self._piece((f"%{width}d" * self.count % tuple(numbers)).encode(), width)

    def _alike(self, numbers: list[int]) -> str:
        """Integers of which the same stand side by side; empty where that is too seldom."""
        first = numbers[0]
        if first == numbers[-1] and numbers.count(first) == self.count:
            return self.bind(first)
        if len(set(numbers)) > _MAX_RUNS:
            return ""
        at, runs = 0, []
        while at < self.count:
            number = numbers[at]
            alike = numbers.count(number)
            if numbers[at : at + alike].count(number) != alike:
                return ""
            at += alike
            runs.append((at, number))
        # a text for any number of them: one that is new has to be compiled
        runs += [runs[-1]] * (_MAX_RUNS - len(runs))
        last = self.bind(runs.pop()[1])
        whens = [f"WHEN i<{self.bind(end)} THEN {self.bind(number)}" for end, number in runs]
        return f"CASE {' '.join(whens)} ELSE {last} END"

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
        # all of one width
        base = 10 ** len(str(len(joined)))
        starts = self.numbers(list(accumulate(lengths, initial=base + 1))[:-1])
        return f"substr({self.bind(joined)},{starts}-{self.bind(base)},{self.numbers(lengths)})"

    def _piece(self, joined: bytes, width: int, *, first: int = 1, step: int = 0) -> str:
        each = self.bind(width)
        every = self.bind(step) if step else each
        return f"substr({self.bind(joined)},i*{every}+{first},{each})"


_UPSERT = f"INSERT INTO jobs({','.join(COLUMNS)})SELECT "

_PLACES = tuple(map(itemgetter, range(RESULT_SIZE + 1)))

_IN_PLAIN = {ID: 0, QUEUE: 1, SEQ: 2, RUN_AT: 3, CREATED: 4, NAME: 5, OPTIONS: 6, DATA: 7}
_IN_RUN = {STATE: 1, ENTERED: 2, STARTED: 3, ATTEMPTS_MADE: 4, RESULT: 5, RESULT_SIZE: 6}
_UNTIL_RUN = {STATE: PENDING, ATTEMPTS_MADE: 0, RESULT_SIZE: -1}


class _Rows:
    """Rows of all widths, column by column: the whole ones, those of runs, and those that wait,
    which is the order in which most have come in."""

    __slots__ = ("plain", "runs", "waiting", "whole")

    def __init__(self, rows: Sequence[Any]) -> None:
        widths = list(map(len, rows))
        self.waiting = _of_width(rows, widths, PLAIN_WIDTH)
        self.runs = _of_width(rows, widths, RUN_WIDTH)
        self.whole = _of_width(rows, widths, RESULT_SIZE + 1)
        #: what tells of the beginning of those of the first two kinds
        self.plain = [*_column(self.runs, 0), *self.waiting]

    def __getitem__(self, place: int) -> list[Any]:
        found = _column(self.whole, place)
        runs, waiting = len(self.runs), len(self.waiting)
        if not runs + waiting:
            return found
        if place in _IN_PLAIN:
            found += map(_PLACES[_IN_PLAIN[place]], self.plain)
        elif place in _IN_RUN:
            found += map(_PLACES[_IN_RUN[place]], self.runs)
            if place == ENTERED:
                found += map(_PLACES[_IN_PLAIN[CREATED]], self.waiting)
            else:
                found += [_UNTIL_RUN.get(place)] * waiting
        else:
            found += [0 if place == PRIORITY else None] * (runs + waiting)
        return found


def _of_width(rows: Sequence[Any], widths: list[int], width: int) -> Sequence[Any]:
    count = widths.count(width)
    if count == len(rows):
        return rows
    return [row for row in rows if len(row) == width] if count else []


def count_short(rows: Sequence[Any]) -> int:
    """How many of the rows are of the two short kinds."""
    widths = list(map(len, rows))
    return widths.count(PLAIN_WIDTH) + widths.count(RUN_WIDTH)


def pack(rows: list[Any], encoder: RowEncoder, on_conflict: str) -> Packed | None:
    """The statement that writes those rows, and its values; `None` if they are of an odd kind."""
    columns = Columns(len(rows))
    parts = _Rows(rows)
    results, sizes = parts[RESULT], parts[RESULT_SIZE]
    try:
        found = (
            columns.ids(parts[ID]),
            columns.texts(parts[QUEUE]),
            *(columns.numbers(parts[place]) for place in (SEQ, STATE, PRIORITY, RUN_AT, ENTERED)),
            _meta(parts, sizes, columns, encoder),
            columns.blobs(parts[DATA], ABSENT),
            columns.blobs(results, _absent(results, sizes)),
        )
    except _Unfit:
        return None
    text = f"{_UPSERT}{','.join(found)} FROM temp.numbers WHERE i<?1 {on_conflict}"
    return text, columns.values


def pack_ended(rows: list[Any], encoder: RowEncoder) -> Packed | None:
    """The statement that writes the run of those jobs, or its end, of which all else is in the
    file. It changes as many rows as it should, or some are missing there."""
    columns = Columns(len(rows))
    parts = _Rows(rows)
    results, sizes = parts[RESULT], parts[RESULT_SIZE]
    try:
        at = columns.ids(parts[ID])
        state = columns.numbers(parts[STATE])
        moment = columns.numbers(parts[ENTERED])
        meta = _meta(parts, sizes, columns, encoder)
        result = columns.blobs(results, _absent(results, sizes))
        place = ""
        if parts[SIDE].count(None) != columns.count:
            # one that waited for other jobs, or for a wall clock, got its place when that was over
            seq, run_at = (columns.numbers(parts[part]) for part in (SEQ, RUN_AT))
            place = f"seq={seq},run_at={run_at},"
    except _Unfit:
        return None
    text = (
        f"UPDATE jobs SET {place}state={state},entered={moment},meta={meta},result={result} "
        f"FROM temp.numbers WHERE i<?1 AND jobs.id={at}"
    )
    return text, columns.values


def _column(rows: Sequence[Any], place: int) -> list[Any]:
    # not zip(*rows), which goes through all the rows for each value of one
    return list(map(_PLACES[place], rows))


def _absent(results: Sequence[bytes | None], sizes: list[int]) -> list[int] | int:
    if sizes.count(-1) == len(sizes):
        return ABSENT
    return [
        KEEP if result is None and 0 <= size <= INLINE_BYTES else ABSENT
        for result, size in zip(results, sizes, strict=True)
    ]


def _meta(parts: _Rows, sizes: list[int], columns: Columns, encoder: RowEncoder) -> str:
    names, options, started = parts[NAME], parts[OPTIONS], parts[STARTED]
    whole, begun = len(parts.whole), columns.count - len(parts.waiting)
    alike = (
        # options are equal only if they are one object
        options.count(options[0]) == names.count(names[0]) == columns.count
        and all(_column(parts.whole, p).count(None) == whole for p in (CUSTOM_ID, CLAIM))
    )
    ties = None
    if alike and (sides := _column(parts.whole, SIDE)).count(None) != whole:
        # of jobs in chains all is known as well; others tell of theirs one by one
        ties = lone_ties(sides) if whole == columns.count else None
        alike = ties is not None and set(map(len, ties.others)) == {_ID_LENGTH}
    elif started.count(None) != len(parts.waiting):
        alike = False
    if not alike:
        return columns.texts(encoder.metas([*parts.whole, *parts.runs, *parts.waiting]))
    waiting = encoder.waiting(names[0], options[0])
    if not begun:
        return columns.bind(waiting)
    # the end of a meta as `RowEncoder.add` makes it, put together there
    head = bindable(f"{encoder.head(names[0], options[0])},")
    if head.__class__ is not str:
        raise _Unfit
    if parts.waiting:
        # nothing is said of these; a number like the others is told in the same few steps
        started[begun:] = [started[begun - 1]] * len(parts.waiting)
    created = columns.digits(parts[CREATED])
    if None in started:
        begun_at = columns.texts([UNSTARTED if at is None else str(at) for at in started])
    else:
        begun_at = columns.digits(started)
    text = f"{columns.bind(head)}||{created}||','||{begun_at}"
    attempts = parts[ATTEMPTS_MADE]
    end = "]" if ties is None else f",null,null,{ties.begin}"
    if attempts.count(attempts[0]) == sizes.count(sizes[0]) == columns.count:
        text += f"||{columns.bind(f',{attempts[0]},{sizes[0]}{end}')}"
    else:
        text += f"||','||{columns.digits(attempts)}||','||{columns.digits(sizes)}"
        text += f"||{columns.bind(end)}"
    if ties is not None:
        text += f"||{columns.digits(ties.moments)}||{columns.bind(ties.middle)}"
        text += f"||{columns.ids(ties.others)}||{columns.bind(ties.end)}"
        text += f"||{columns.digits(ties.codes)}||{columns.bind(ties.last + ']')}"
    if parts.waiting:
        text = f"CASE WHEN i<{columns.bind(begun)} THEN {text} ELSE {columns.bind(waiting)} END"
    return text
