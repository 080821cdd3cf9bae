"""What the engine asks of a storage, and what it is told. A storage never sees a shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from ..clock import Clock
from ..errors import StorageError
from ..model.options import Options
from ..model.rows import JobRow, Marks, PlainRow

Cut = Callable[[], list[Marks]]
"""Begins a cut: from here on, what is marked is in the next one. Returns where the marks go."""

Collect = Callable[[Cut], None]
"""Makes one consistent cut: with every shard's lock held, calls the `Cut` once and then hands all
marks over to the end of the list that it returned (`Dirty.swap`)."""

Count = Callable[[], int]
"""About how many rows are marked and not cut yet; takes no lock."""


Changed = Callable[[StorageError | None], None]
"""Told once whenever writing begins to fail, with the reason, and whenever it works again."""


class Recovered(NamedTuple):
    """What the file holds. `clean`: it was closed in good order, or is new.

    `jobs` may be iterated once, outside every lock, before `start`; each has its payload, however
    long. An `UndecodableRowError` stands in the place of a row that could not be understood. `rest`
    is (kind, key, body) of everything else.
    """

    clean: bool
    jobs: Iterable[JobRow | PlainRow | StorageError]
    rest: Iterable[tuple[str, str, Any]]


class StorageHealth(NamedTuple):
    """How a storage is doing. `rows_waiting`: changes that are not on disk; `lag_ms`: the age of
    the oldest of them. `failing_since_ms` (by the timeline) and `error` are `None` while all is
    well. `commits` and `rows_written` count from the start; `log_bytes` is about how long SQLite's
    write-ahead log is."""

    rows_waiting: int
    lag_ms: float
    failing_since_ms: int | None
    error: StorageError | None
    commits: int
    rows_written: int
    log_bytes: int


class Ticket(Protocol):
    """What `watch` returns: why its cut is not on disk; `None` while that is being tried, and once
    it is there."""

    error: StorageError | None


class Storage(Protocol):
    """What keeps the state beyond the process. All of it may be called from any thread."""

    persistent: bool
    max_value_bytes: int
    """The longest payload or result that it can keep."""

    def open(self, serializer_name: str, default: Options, clock: Clock) -> Recovered:
        """Takes the storage for this manager alone and tells what it holds. `default` are the
        options of a job without any. Raises `StorageError` and its kinds, with nothing changed."""
        ...

    def start(
        self, collect: Collect, count: Count, *, threaded: bool, changed: Changed | None = None
    ) -> None:
        """What is marked is written from now on; by `step` alone where not `threaded`. `changed`
        is called with no lock held, from whatever thread writes."""
        ...

    @property
    def cut(self) -> int:
        """The number of the cut that what is marked now will be in; read under a shard's lock."""
        ...

    @property
    def troubled(self) -> bool:
        """Whether `refuse` may have something to say."""
        ...

    def marked(self) -> None:
        """Something is marked for the first time since the last cut. Memory only: it is called
        under a shard's lock."""
        ...

    def refuse(self, *, durable: bool) -> None:
        """Raises `StorageError` if a push must not be accepted now. Before anything changes."""
        ...

    def admit(self) -> None:
        """What has marked something waits here until the writer keeps up, holding no lock."""
        ...

    def wait_committed(self, cut: int, job_id: str | None = None) -> None:
        """Blocks until that cut is on disk. Raises `StorageError` with `accepted` if that fails;
        it is then still to be written."""
        ...

    def watch(self, cut: int, tell: Callable[[], object]) -> Ticket | None:
        """Has `tell` called, with no lock held and from any thread, once that cut is on disk or
        could not be written, and returns what says which; `None` if it is on disk already. One
        that is returned with an error tells nobody any more."""
        ...

    def flush(self, timeout_ms: int | None = None) -> None:
        """Blocks until everything that is marked is on disk. Raises `StorageError`, or
        `WaitTimeoutError`."""
        ...

    def step(self) -> bool:
        """Writes what is marked now, where no thread does; `False` if that failed."""
        ...

    def unwritten(self) -> list[Marks]:
        """What was handed over and may not be on disk, the newest first: to be looked at after
        the shard's own marks and before what is on disk."""
        ...

    def read_job(self, job_id: str) -> JobRow | None:
        """The job as it was handed over last, with its payload, however long; `None` if there is
        none. Blocks for the disk: to be called with no lock held, after a look at the shard's own
        marks. Raises `StorageError`, for a row that cannot be understood too."""
        ...

    def read_result(self, job_id: str) -> bytes | None:
        """The job's encoded result as it was handed over last, however long; `None` if it has
        none, or there is no such job. Called as `read_job` is."""
        ...

    def completed_ids(
        self, queue: str, until_ms: int, after: tuple[int, int], limit: int
    ) -> list[tuple[int, int, str]]:
        """(when it ended, admission number, id) of completed jobs of the queue on disk that ended
        by then, in that order, beginning behind `after`. What is unwritten does not count. Called
        as `read_job` is."""
        ...

    def health(self) -> StorageHealth:
        """How it is doing now."""
        ...

    def close(self, timeout_ms: int | None = None) -> None:
        """Writes what is left and frees the storage; safe twice. Raises `StorageError`, which
        says where the changes are that could not be written."""
        ...

    def disown(self) -> None:
        """In a forked child: leaves everything to the parent, touching nothing of it."""
        ...
