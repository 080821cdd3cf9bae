"""`FlowNode`: a job of a flow that is yet to be added, with the children that it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from typing_extensions import Unpack

from ..durations import shown
from ..errors import FlowError, ValidationError
from .checks import checked_iterable, checked_queue_name
from .links import checked_policy
from .options import JobOptions, check_known

MAX_NODES = 10_000
MAX_LEVELS = 100

_REFUSED = ("deduplication", "repeat")


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
        self.queue = checked_queue_name(queue.name if hasattr(queue, "add_bulk") else queue)
        for refused in _REFUSED:
            if refused in options:
                raise ValidationError(f"a flow's jobs cannot have {refused}")
        check_known(options)
        checked_policy(on_failure)
        self.name = name
        self.data = data
        self.children: list[FlowNode] = list(checked_iterable(children, "children"))
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


class Planned(NamedTuple):
    """A node in its place: the numbers of its parent and its children among all, and its path, for
    errors."""

    node: FlowNode
    parent: int | None
    path: str
    children: list[int]


def planned(roots: Sequence[Any], what: str = "nodes") -> list[Planned]:
    """All nodes of those trees, each behind its children. Raises `FlowError` for a node that comes
    twice or is its own descendant, for more than 10,000 nodes or 100 levels; `ValidationError` for
    what is no node."""
    found: list[Planned] = []
    places: dict[int, int] = {}
    order: list[int] = []
    for i, root in enumerate(roots):
        path = what if what == "node" else f"{what}[{i}]"
        stack: list[tuple[int, Iterator[Any]]] = []
        _enter(found, places, stack, root, None, path)
        while stack:
            at, children = stack[-1]
            child = next(children, None)
            if child is None:
                order.append(at)
                stack.pop()
                continue
            number = len(found[at].children)
            _enter(found, places, stack, child, at, f"{found[at].path}.children[{number}]")
    renumbered = {old: new for new, old in enumerate(order)}
    return [
        Planned(
            found[old].node,
            None if found[old].parent is None else renumbered[found[old].parent],  # type: ignore[index]
            found[old].path,
            [renumbered[child] for child in found[old].children],
        )
        for old in order
    ]


def _enter(
    found: list[Planned],
    places: dict[int, int],
    stack: list[tuple[int, Iterator[Any]]],
    node: Any,
    parent: int | None,
    path: str,
) -> None:
    if not isinstance(node, FlowNode):
        raise ValidationError(f"{path} must be a FlowNode, not {shown(node)}")
    known = places.get(id(node))
    if known is not None:
        for at, (number, _) in enumerate(stack):
            if number == known:
                names = [found[n].node.name for n, _ in stack[at:]] + [node.name]
                raise FlowError(
                    f"{path} is its own ancestor: {' -> '.join(repr(name) for name in names)}"
                )
        raise FlowError(
            f"{path} is the same FlowNode as {found[known].path}: each job needs a node of its own"
        )
    if len(found) >= MAX_NODES:
        raise FlowError(f"a flow has at most {MAX_NODES:,} jobs; {path} is one more")
    if len(stack) >= MAX_LEVELS:
        raise FlowError(f"a flow has at most {MAX_LEVELS} levels; {path} is one deeper")
    number = len(found)
    places[id(node)] = number
    found.append(Planned(node, parent, path, []))
    if parent is not None:
        found[parent].children.append(number)
    stack.append((number, iter(tuple(node.children))))
