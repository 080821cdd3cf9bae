"""`FlowProducer`: jobs that wait for jobs, added all at once, and looked at as a tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..durations import shown
from ..errors import JobNotFoundError, ValidationError
from ..model.checks import checked_int, checked_iterable
from ..model.flow_node import MAX_LEVELS, FlowNode, FlowPlan, planned
from ..types import JobState
from .job import Job
from .protocol import Manager

_MARKS = {
    JobState.COMPLETED: "done",
    JobState.FAILED: "failed",
    JobState.ACTIVE: "active",
    JobState.WAITING_CHILDREN: "gated",
}


@dataclass(slots=True)
class FlowResult:
    """A job of a flow, as it was when it was read, and its children. `print(result)` draws the
    tree with the states that it had; `FlowProducer.get` reads it again."""

    job: Job
    children: list[FlowResult] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [_line(self.job)]
        self._draw(lines, "")
        return "\n".join(lines)

    def _draw(self, lines: list[str], indent: str) -> None:
        for i, child in enumerate(self.children):
            last = i == len(self.children) - 1
            lines.append(f"{indent}{'`-- ' if last else '|-- '}{_line(child.job)}")
            child._draw(lines, indent + ("    " if last else "|   "))

    def to_mermaid(self) -> str:
        """The tree as a Mermaid flowchart, an arrow from each job to the one that waits for it."""
        nodes = list(self.walk())
        numbers = {id(node): i for i, node in enumerate(nodes)}
        lines = ["flowchart BT"]
        for i, node in enumerate(nodes):
            job = node.job
            label = _escaped(f"{job.name} ({job.queue}): {job.state}")
            lines.append(f'    n{i}["{label}"]')
            kind = _MARKS.get(job.state)
            if kind is not None:
                lines.append(f"    class n{i} {kind}")
        for node in nodes:
            for child in node.children:
                lines.append(f"    n{numbers[id(child)]} --> n{numbers[id(node)]}")
        lines += [
            "    classDef done fill:#d7f5d7",
            "    classDef failed fill:#f8d0d0",
            "    classDef active fill:#d0e4f8",
            "    classDef gated fill:#eeeeee",
        ]
        return "\n".join(lines)

    def walk(self) -> Iterable[FlowResult]:
        """This node and all below it, each before its children."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += reversed(node.children)


def _line(job: Job) -> str:
    text = f"{job.name} ({job.queue}) {job.state}"
    if job.state is JobState.FAILED and job.error:
        first = job.error.splitlines()[0]
        text += f": {first if len(first) <= 100 else first[:97] + '...'}"
    return text


def _escaped(text: str) -> str:
    return text.translate(_ENTITIES)


_ENTITIES = {ord(character): f"#{ord(character)};" for character in '&"<>#;`\n\r'}
"""What Mermaid would take for its own in a label, as it wants it written."""


class FlowProducer:
    """Adds flows: jobs of any queues of a manager that wait for each other. All jobs of a call are
    added, or none is, in memory and on disk.

    A flow has at most 10,000 jobs and 100 levels. A `custom_id` of a job that is still live is
    refused: a flow needs jobs of its own.

    >>> from bunqueue_py import FlowNode, QueueManager
    >>> with QueueManager() as manager:
    ...     flows = FlowProducer(manager)
    ...     pages = [FlowNode("pages", f"page {n}") for n in (1, 2)]
    ...     print(flows.add(FlowNode("books", "bind", children=pages)))
    bind (books) waiting-children
    |-- page 1 (pages) waiting
    `-- page 2 (pages) waiting
    """

    def __init__(self, manager: Manager | None = None) -> None:
        if manager is None:
            from ..default_manager import get_default_manager

            manager = get_default_manager()
        if not hasattr(manager, "add_flows"):
            raise ValidationError(f"manager must be a QueueManager, not {shown(manager)}")
        self._manager = manager

    def __repr__(self) -> str:
        return f"<FlowProducer of {self._manager!r}>"

    def add(self, node: FlowNode) -> FlowResult:
        """Adds the node's job and all below it. The leaves run first; a job runs when all its
        children have completed (or their `on_failure` lets it go).

        Raises `FlowError`, `ValidationError`, `SerializationError` or `TypeError`, saying which
        node is meant (`node.children[2]`), and `GroupFullError`, before anything has changed.
        """
        plan = planned([node], "node")
        return _trees(plan, self._manager.add_flows(plan))[0]

    def add_bulk(self, nodes: Iterable[FlowNode]) -> list[FlowResult]:
        """Adds several flows in one unit: all or none. At most 10,000 jobs together."""
        plan = planned(list(checked_iterable(nodes, "nodes")))
        return _trees(plan, self._manager.add_flows(plan))

    def chain(self, nodes: Iterable[FlowNode]) -> list[Job]:
        """Adds jobs that run one after the other; returns them in that order. Each depends on the
        one before, finds its result in `children_values()`, and its failure does to the next what
        its `on_failure` says."""
        plan = planned(list(checked_iterable(nodes, "nodes")))
        jobs = self._manager.add_flows(plan, chain=True)
        return [jobs[root] for root in plan.roots]

    def fan_in(self, nodes: Iterable[FlowNode], final: FlowNode) -> FlowResult:
        """Adds jobs that run side by side, and `final`, which runs when they are done: they become
        its children, beside those that it has."""
        if not isinstance(final, FlowNode):
            raise ValidationError(f"final must be a FlowNode, not {shown(final)}")
        root = FlowNode(final.queue, final.name, final.data, on_failure=final.on_failure)
        root.options = final.options
        root.children = [*checked_iterable(nodes, "nodes"), *final.children]
        if any(child is final for child in root.children):
            raise ValidationError("nodes must not have the final one among them")
        return self.add(root)

    def get(self, job: Job | str, depth: int = 10) -> FlowResult:
        """The job and its children as they are now, and theirs, `depth` levels in all (1 to 100).
        Children that are gone are left out. Raises `JobNotFoundError`."""
        checked_int(depth, "depth", 1, MAX_LEVELS)
        job_id = job.id if isinstance(job, Job) else job
        found = self._manager.get_job(job_id)
        if found is None:
            raise JobNotFoundError(f"there is no job {job_id!r}", job_id=job_id)
        root = FlowResult(found)
        level = [root]
        for _ in range(depth - 1):
            below: list[FlowResult] = []
            for node in level:
                for child_id in node.job.children_ids:
                    child = self._manager.get_job(child_id)
                    if child is not None:
                        node.children.append(FlowResult(child))
                below += node.children
            level = below
        return root


def _trees(plan: FlowPlan, jobs: Sequence[Job]) -> list[FlowResult]:
    made = [FlowResult(job, []) for job in jobs]
    for number, children in plan.children.items():
        made[number].children = [made[child] for child in children]
    return [made[root] for root in plan.roots]
