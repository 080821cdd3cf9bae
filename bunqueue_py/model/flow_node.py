"""`FlowNode`: a job of a flow that is yet to be added, with the children that it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from typing_extensions import Unpack

from ..durations import shown
from ..errors import FlowError, ValidationError
from .checks import checked_iterable, checked_queue_name
from .links import checked_policy
from .options import JobOptions, check_known

MAX_NODES = 10_000
MAX_LEVELS = 100

_REFUSED = ("deduplication", "repeat")
_DEFAULT_POLICY = "fail_parent"


class FlowNode:
    """A job that is yet to be added to `queue` (a name or a `Queue`), and the jobs that it waits
    for: its children, which may be of any queues and have children of their own.

    `on_failure`: what the final failure of this job does to its parent. `fail_parent`: that fails
    too, with `dependency_failed`. `continue_parent`: that runs at once, whatever else it waited
    for, and finds it in `failed_children()`. `ignore_dependency`: that does without it, and finds
    it in `ignored_failures()`. `remove_dependency`: that does without it. `wait`: that waits until
    this job has been retried and completes. The options are those of a job, but for
    `deduplication`.

    >>> page = FlowNode("pages", "render", {"page": 1}, on_failure="ignore_dependency")
    >>> FlowNode("books", "bind", children=[page], attempts=5)
    FlowNode('books', 'bind', children=1, attempts=5)
    """

    __slots__ = ("children", "data", "name", "on_failure", "options", "queue")

    def __init__(
        self,
        queue: Any,
        name: str,
        data: Any = None,
        children: Iterable[FlowNode] = (),
        on_failure: str = "fail_parent",
        **options: Unpack[JobOptions],
    ) -> None:
        if queue.__class__ is not str and hasattr(queue, "add_bulk"):
            queue = queue.name
        self.queue = checked_queue_name(queue)
        if options:
            for refused in _REFUSED:
                if refused in options:
                    raise ValidationError(f"a flow's jobs cannot have {refused}")
            check_known(options)
        if on_failure != _DEFAULT_POLICY:
            checked_policy(on_failure)
        self.name = name
        self.data = data
        self.children: list[FlowNode] = []
        if children.__class__ is not tuple or children:
            # most have none
            self.children = list(checked_iterable(children, "children"))
        self.on_failure = on_failure
        self.options: dict[str, Any] = options  # type: ignore[assignment]

    def __repr__(self) -> str:
        parts = [repr(self.queue), repr(self.name)]
        if self.data is not None:
            parts.append(shown(self.data))
        if self.children:
            parts.append(f"children={len(self.children)}")
        if self.on_failure != "fail_parent":
            parts.append(f"on_failure={self.on_failure!r}")
        parts += [f"{key}={shown(value)}" for key, value in self.options.items()]
        return f"FlowNode({', '.join(parts)})"


class FlowPlan:
    """All nodes of some trees, each behind its children.

    `parents` has the number of each one's parent, `None` for a root; `children` the numbers of the
    children, in order, of those that have any; `roots` the numbers of the roots; `levels` is how
    many the deepest tree has. `what` is what errors call the roots.
    """

    __slots__ = ("children", "levels", "nodes", "parents", "roots", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.nodes: list[FlowNode] = []
        self.parents: list[int | None] = []
        self.children: dict[int, list[int]] = {}
        self.roots: list[int] = []
        self.levels = 0

    def __len__(self) -> int:
        return len(self.nodes)

    def path(self, i: int) -> str:
        """What errors call that node."""
        steps = []
        while (above := self.parents[i]) is not None:
            steps.append(self.children[above].index(i))
            i = above
        return _path(self.what, self.roots.index(i), steps[::-1])


_Frame = tuple[FlowNode, "Iterator[Any]", "list[int]"]
"""A node that is being gone through, the children of it that are yet to come, and the numbers of
those that are done."""


def planned(roots: Sequence[Any], what: str = "nodes") -> FlowPlan:
    """All nodes of those trees, in their places. Raises `FlowError` for a node that comes twice or
    is its own descendant, for more than 10,000 nodes or 100 levels; `ValidationError` for what is
    no node."""
    plan = FlowPlan(what)
    nodes, parents = plan.nodes, plan.parents
    seen: set[int] = set()
    stack: list[_Frame] = []
    top: Iterator[Any] = iter(tuple(roots))
    waiting, mine = top, plan.roots
    while True:
        for node in waiting:
            if node.__class__ is not FlowNode and not isinstance(node, FlowNode):
                raise ValidationError(f"{_here(plan, stack)} must be a FlowNode, not {shown(node)}")
            if id(node) in seen:
                raise _comes_twice(plan, stack, roots, node)
            if len(nodes) + len(stack) >= MAX_NODES:
                raise FlowError(
                    f"a flow has at most {MAX_NODES:,} jobs; {_here(plan, stack)} is one more"
                )
            if len(stack) >= MAX_LEVELS:
                raise FlowError(
                    f"a flow has at most {MAX_LEVELS} levels; {_here(plan, stack)} is one deeper"
                )
            seen.add(id(node))
            if node.children:
                waiting, mine = iter(tuple(node.children)), []
                stack.append((node, waiting, mine))
                break
            mine.append(len(nodes))
            nodes.append(node)
            parents.append(None)
        else:
            if not stack:
                plan.levels = max(plan.levels, 1 if nodes else 0)
                return plan
            plan.levels = max(plan.levels, len(stack) + 1)
            node, _, below = stack.pop()
            number = len(nodes)
            for child in below:
                parents[child] = number
            plan.children[number] = below
            waiting, mine = stack[-1][1:] if stack else (top, plan.roots)
            mine.append(number)
            nodes.append(node)
            parents.append(None)


def _path(what: str, root: int, steps: Sequence[int]) -> str:
    start = what if what == "node" else f"{what}[{root}]"
    return start + "".join(f".children[{step}]" for step in steps)


def _here(plan: FlowPlan, stack: list[_Frame]) -> str:
    """The path of the node that was come to just now."""
    return _path(plan.what, len(plan.roots), [len(done) for _, _, done in stack])


def _comes_twice(
    plan: FlowPlan, stack: list[_Frame], roots: Sequence[Any], node: FlowNode
) -> FlowError:
    path = _here(plan, stack)
    above = [frame[0] for frame in stack]
    for at, ancestor in enumerate(above):
        if ancestor is node:
            names = [repr(each.name) for each in [*above[at:], node]]
            return FlowError(f"{path} is its own ancestor: {' -> '.join(names)}")
    return FlowError(
        f"{path} is the same FlowNode as {_first_path(plan.what, roots, node)}: each job needs a "
        "node of its own"
    )


def _first_path(what: str, roots: Sequence[Any], node: FlowNode) -> str:
    """Where that node, which has come, comes first."""
    left = [(_path(what, i, ()), root) for i, root in enumerate(roots)][::-1]
    while left:
        path, at = left.pop()
        if at is node:
            return path
        below = [(f"{path}.children[{i}]", child) for i, child in enumerate(at.children)]
        left += reversed(below)
    raise AssertionError("a node that has come is not among those that were given")
