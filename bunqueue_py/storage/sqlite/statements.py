"""The texts of the statements that write many rows at once.

CPython gives up the GIL at every step of a statement and, beside a busy thread, gets it back 5 ms
later. So one statement takes as many rows as it may have variables for. The numbers of rows are
rounded up to a few sizes, and the last row is repeated to fill up, so that there is only a handful
of texts for SQLite to compile and for Python to keep. Where most rows of a cut are of the two kinds
that there are most of, they go by the column instead (`packed`).
"""

from __future__ import annotations

from sqlite3 import Connection
from typing import Any

from .rows import COLUMNS

MAX_ROWS = 2048
"""A statement longer than this saves nothing, and takes SQLite memory."""

_DEFAULT_VARIABLES = 32_766
"""What SQLite allows from 3.32 on unless it was compiled otherwise."""

_LIMIT_VARIABLE_NUMBER = 9


def variable_limit(connection: Connection) -> int:
    """How many variables a statement may have there."""
    if hasattr(connection, "getlimit"):  # from Python 3.11 on
        limit: int = connection.getlimit(_LIMIT_VARIABLE_NUMBER)
        return limit
    for (option,) in connection.execute("PRAGMA compile_options"):
        name, _, value = option.partition("=")
        if name == "MAX_VARIABLE_NUMBER":
            return int(value)
    return _DEFAULT_VARIABLES


class Statement:
    """One kind of statement: what stands before its rows, a row, and what stands after them. Texts
    are made once for each size."""

    __slots__ = ("_before", "_row", "_texts", "after", "max_rows", "width")

    def __init__(self, before: str, row: str, after: str, variables: int) -> None:
        self._before = before
        self._row = row
        self.after = after
        width = row.count("?")
        self._texts: dict[int, str] = {}
        self.width = width
        #: how many rows one statement takes
        self.max_rows = min(MAX_ROWS, variables // width)
        if self.max_rows < 1:
            raise ValueError(f"{variables} variables are too few for {width} columns")

    def filled(self, values: list[Any]) -> tuple[str, list[Any]]:
        """The text for those values, which are of 1 to `max_rows` rows, and the values, filled up
        with the last row until they fit (in place)."""
        rows = len(values) // self.width
        size = min(size_for(rows), self.max_rows)
        values += values[-self.width :] * (size - rows)
        text = self._texts.get(size)
        if text is None:
            rows_text = ",".join([self._row] * size)
            text = self._texts[size] = f"{self._before}{rows_text}{self.after}"
        return text, values


def size_for(rows: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, ...: a third is filled up at the most."""
    size: int = 1 << (rows - 1).bit_length()
    return size * 3 // 4 if rows <= size * 3 // 4 else size


class Statements:
    """Every statement of the writer, for one connection."""

    __slots__ = (
        "drop_jobs",
        "drop_payloads",
        "drop_rest",
        "drop_results",
        "put_jobs",
        "put_payloads",
        "put_rest",
        "put_results",
    )

    def __init__(self, variables: int) -> None:
        updates = [f"{c}=excluded.{c}" for c in COLUMNS if c not in ("id", "result")]
        # KEEP is 1, and leaves the result that is there
        updates.append("result=CASE excluded.result WHEN 1 THEN result ELSE excluded.result END")
        self.put_jobs = Statement(
            f"INSERT INTO jobs({','.join(COLUMNS)})VALUES",
            f"({','.join('?' * len(COLUMNS))})",
            f"ON CONFLICT(id)DO UPDATE SET {','.join(updates)}",
            variables,
        )
        self.put_payloads = _put_blobs("payloads", variables)
        self.put_results = _put_blobs("results", variables)
        self.put_rest = Statement(
            "INSERT INTO rest(kind,key,body)VALUES",
            "(?,?,?)",
            "ON CONFLICT(kind,key)DO UPDATE SET body=excluded.body",
            variables,
        )
        self.drop_jobs = _drop("jobs", variables)
        self.drop_payloads = _drop("payloads", variables)
        self.drop_results = _drop("results", variables)
        self.drop_rest = Statement(
            "DELETE FROM rest WHERE(kind,key)IN(VALUES", "(?,?)", ")", variables
        )


def _put_blobs(table: str, variables: int) -> Statement:
    return Statement(
        f"INSERT INTO {table}(id,data)VALUES",
        "(?,?)",
        "ON CONFLICT(id)DO UPDATE SET data=excluded.data",
        variables,
    )


def _drop(table: str, variables: int) -> Statement:
    return Statement(f"DELETE FROM {table} WHERE id IN(", "?", ")", variables)
