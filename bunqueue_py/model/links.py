"""What ties a job to others: what it waits for, whose child it is, what a failure does.

An edge is one integer: how it stands, what the failure of the other job does, and whether that is
a child of this one or a plain dependency. Guarded by the shard of the job that has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from ..durations import shown
from ..errors import ValidationError

UNMET, MET, FAILED_CHILD, IGNORED, DROPPED, LOOSE = range(6)
"""Waited for; completed; failed and the job went on without the rest; failed and passed over;
failed and no longer known; no longer waited for, since another failed so."""

FAIL, CONTINUE, IGNORE, REMOVE, WAIT = range(5)

POLICIES = ("fail_parent", "continue_parent", "ignore_dependency", "remove_dependency", "wait")
"""What `on_failure` may be, by number."""
DEPENDENCY_POLICIES = {"fail": FAIL, "ignore": IGNORE, "wait": WAIT}
"""What `on_dependency_failure` may be."""

MAX_DEPENDENCIES = 10_000
INLINE_EDGES = 32
"""Up to so many edges stand in the job's own row; more of them in rows of their own, so that a
change of state does not write them all again."""
EDGES_A_ROW = 256

STATUS = 7
"""The bits of an edge that say how it stands."""
_POLICY_SHIFT = 3
_CHILD = 64
_PARTS = 2  # an id and a code
MAX_CODE = 127

LinksRow = tuple["str | None", int, "tuple[tuple[str, int], ...] | int"]
"""The parent's id, what a failure of this job does to it, and the edges, or their number where
they have rows of their own."""


def edge(policy: int, *, child: bool) -> int:
    """A new edge, unmet."""
    return policy << _POLICY_SHIFT | (_CHILD if child else 0)


def status_of(code: int) -> int:
    """How the edge stands."""
    return code & STATUS


def policy_of(code: int) -> int:
    """What the failure of the other job does."""
    return code >> _POLICY_SHIFT & STATUS


def is_child(code: int) -> bool:
    """Whether the other job is a child of this one."""
    return code & _CHILD != 0


class LinksView(NamedTuple):
    """An unchanging copy of what a job's snapshots show of its `Links`."""

    parent_id: str | None
    children: tuple[str, ...]
    depends_on: tuple[str, ...]


class Links:
    """The edges of one job, in the order in which they came.

    `unmet` counts those that it waits for. `parent_id` is the job of which it is a child, and
    `on_failure` what its final failure does to that one. Children of one parent that wait for
    nothing share one object: whoever gives such a job an edge gives it `Links` of its own first
    (`owned`), and so does whoever takes its parent from it.
    """

    __slots__ = ("_view", "edges", "on_failure", "parent_id", "unmet")

    def __init__(self, parent_id: str | None = None, on_failure: int = FAIL) -> None:
        self.parent_id = parent_id
        self.on_failure = on_failure
        self.edges: dict[str, int] = {}
        self.unmet = 0
        self._view: LinksView | None = None

    def add(self, job_id: str, policy: int, *, child: bool) -> None:
        """Waits for that job too; nothing new if it is waited for already."""
        if job_id not in self.edges:
            self.edges[job_id] = edge(policy, child=child)
            self.unmet += 1
            self._view = None

    def put(self, job_id: str, code: int) -> None:
        """Adds that edge as it is, unless there is one to the job."""
        if job_id not in self.edges:
            self.edges[job_id] = code
            self.unmet += status_of(code) == UNMET
            self._view = None

    def settle(self, job_id: str, status: int) -> None:
        """The unmet edge stands otherwise from now on."""
        code = self.edges[job_id]
        if status_of(code) in (UNMET, LOOSE):
            self.unmet -= status_of(code) == UNMET
            self.edges[job_id] = code & ~STATUS | status
            if status == DROPPED:
                self._view = None

    def go_on_without(self, job_id: str) -> None:
        """The job of that unmet edge failed, and nothing is waited for any more."""
        edges = {
            other: code | LOOSE if status_of(code) == UNMET else code
            for other, code in self.edges.items()
        }
        edges[job_id] = self.edges[job_id] & ~STATUS | FAILED_CHILD
        # in one step: an exception between must not leave it waiting for some of the rest
        self.edges = edges
        self.unmet = 0

    def drop(self, job_id: str) -> bool:
        """The edge is gone; says whether it was there."""
        code = self.edges.pop(job_id, None)
        if code is None:
            return False
        self.unmet -= status_of(code) == UNMET
        self._view = None
        return True

    def owned(self) -> Links:
        """This one if it has edges, so belongs to one job; else a copy that does."""
        return self if self.edges else Links(self.parent_id, self.on_failure)

    def without_parent(self) -> Links:
        """The same ties, but for those to a parent."""
        copy = Links(None, self.on_failure)
        put_edges(copy, self.edges.items())
        return copy

    def waited_for(self) -> list[str]:
        """The ids of the unmet edges."""
        return [job_id for job_id, code in self.edges.items() if status_of(code) == UNMET]

    def view(self) -> LinksView:
        """The copy that snapshots hold: the same one until an edge comes or goes."""
        view = self._view
        if view is None and not self.edges:
            view = self._view = LinksView(self.parent_id, (), ())
        elif view is None:
            shown = [(i, c) for i, c in self.edges.items() if status_of(c) != DROPPED]
            view = self._view = LinksView(
                self.parent_id,
                tuple(job_id for job_id, code in shown if is_child(code)),
                tuple(job_id for job_id, code in shown if not is_child(code)),
            )
        return view

    def row(self) -> LinksRow:
        """What the job's row has of it."""
        edges = self.edges
        inline = len(edges) <= INLINE_EDGES
        return self.parent_id, self.on_failure, tuple(edges.items()) if inline else len(edges)

    def chunks(self) -> Iterator[list[Any]]:
        """The edges as they stand in rows of their own: ids and codes in turn."""
        items = iter(self.edges.items())
        while chunk := list(islice(items, EDGES_A_ROW)):
            yield [part for item in chunk for part in item]

    def recount(self) -> None:
        """Counts the unmet edges anew."""
        self.unmet = len(self.waited_for())

    def check(self) -> None:
        """Asserts its invariants."""
        unmet = sum(status_of(code) == UNMET for code in self.edges.values())
        assert self.unmet == unmet, "count of unmet edges"


def links_of_row(row: LinksRow) -> Links:
    """What the row was taken of; edges that have rows of their own come with `read_chunk`."""
    parent_id, on_failure, edges = row
    links = Links(parent_id, on_failure)
    if not isinstance(edges, int):
        put_edges(links, edges)
    return links


def read_chunk(body: Any) -> list[tuple[str, int]]:
    """The edges that such a row has. Raises `ValueError` for what is none."""
    if body.__class__ is not list or len(body) % _PARTS:
        raise ValueError("edges are ids and codes in turn")
    pairs = list(zip(body[::_PARTS], body[1::_PARTS], strict=True))
    check_edges(pairs)
    return pairs


def check_edges(pairs: Iterable[Sequence[Any]]) -> None:
    """Raises `ValueError` unless they are ids and codes."""
    for job_id, code in pairs:
        if job_id.__class__ is not str or code.__class__ is not int or not 0 <= code <= MAX_CODE:
            raise ValueError("an edge is an id and a code")
        if status_of(code) > LOOSE or policy_of(code) > WAIT:
            raise ValueError("an edge of an unknown kind")


def put_edges(links: Links, pairs: Iterable[Sequence[Any]]) -> None:
    """Adds edges that have been checked."""
    for job_id, code in pairs:
        links.edges[job_id] = code
        links.unmet += status_of(code) == UNMET


# -- options ---------------------------------------------------------------------------------------


def checked_policy(value: object) -> int:
    """The number of an `on_failure`."""
    if not isinstance(value, str) or value not in POLICIES:
        raise ValidationError(f"on_failure must be among {', '.join(POLICIES)}, not {shown(value)}")
    return POLICIES.index(value)


def dependency_options(depends_on: object, policy: object) -> tuple[tuple[object, ...], int]:
    """The jobs that `depends_on` names (ids, and `JobSpec`s that are left as they are), and the
    number of the `on_dependency_failure`."""
    if not isinstance(policy, str) or policy not in DEPENDENCY_POLICIES:
        raise ValidationError(
            "on_dependency_failure must be 'fail', 'wait' or 'ignore', not " + shown(policy)
        )
    if isinstance(depends_on, (str, bytes)) or not isinstance(depends_on, Sequence):
        raise ValidationError(
            f"depends_on must be a sequence of jobs, ids or JobSpecs, not {shown(depends_on)}"
        )
    if len(depends_on) > MAX_DEPENDENCIES:
        raise ValidationError(
            f"depends_on takes at most {MAX_DEPENDENCIES:,} jobs, not {len(depends_on):,}"
        )
    found: list[object] = []
    for i, value in enumerate(depends_on):
        job_id = value if isinstance(value, str) else getattr(value, "_id", None)
        if isinstance(job_id, str):
            found.append(job_id)
        elif hasattr(value, "options") and hasattr(value, "data"):
            found.append(value)
        else:
            raise ValidationError(
                f"depends_on[{i}] must be a Job, a job id or a JobSpec, not {shown(value)}"
            )
    return tuple(found), DEPENDENCY_POLICIES[policy]
