"""A flow that comes in: its nodes become records that nobody knows yet, tied together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import SerializationError, ValidationError
from ..model.flow_node import FlowPlan
from ..model.job import JobRecord
from ..model.links import Links, checked_policy, edge, policy_of
from ..model.own import NAMED, Own
from ..model.rows import side_row
from ..model.side import Side, side_view
from ..state import State
from .draft import draft, new_record
from .outcomes import links_of


class Drafts(NamedTuple):
    """The jobs of a flow that nobody knows yet, as the plan has them. `special` are the numbers of
    those that were given options."""

    plan: FlowPlan
    records: list[JobRecord]
    owns: list[Own]
    special: list[int]


def drafted(state: State, plan: FlowPlan) -> Drafts:
    """A record for each node; whatever is wrong with one is told with its path."""
    records: list[JobRecord] = []
    owns: list[Own] = []
    special: list[int] = []
    queues, default = state.queues, state.options.default
    try:
        for node in plan.nodes:
            options = node.options
            if not options:
                queue = queues.get(node.queue)
                records.append(new_record(state, queue, node.name, node.data, default, 0))
                owns.append(NAMED)
                continue
            if "deduplication" in options or "repeat" in options:
                raise ValidationError("a flow's jobs can have neither deduplication nor repeat")
            record, own = draft(state, queues.get(node.queue), node.name, node.data, dict(options))
            for job_id in () if own is None else own.depends_on:
                if not isinstance(job_id, str):
                    raise ValidationError("depends_on: a flow's jobs are its children")
            special.append(len(records))
            records.append(record)
            owns.append(own or NAMED)
    except ValidationError as error:
        raise ValidationError(f"{plan.path(len(records))}: {error}") from error
    except SerializationError as error:
        path = plan.path(len(records))
        raise SerializationError(f"{path}: {error}", path=error.path) from error
    except TypeError as error:
        raise TypeError(f"{plan.path(len(records))}: {error}") from error
    return Drafts(plan, records, owns, special)


def named_by(drafts: Drafts, i: int) -> list[str]:
    """The ids of the jobs outside the flow that this one of it depends on."""
    return [str(job_id) for job_id in drafts.owns[i].depends_on]


def tie_drafts(drafts: Drafts, *, chain: bool, parent_id: str | None) -> None:
    """Ties the records together, children to parents and, in a chain, each root to the one before;
    and the last root to the job that it comes to."""
    plan, records, owns = drafts.plan, drafts.records, drafts.owns
    for policy in {plan.nodes[root].on_failure for root in plan.roots}:
        checked_policy(policy)
    ties: dict[int, Links] = {}
    for number, children in plan.children.items():
        links = ties[number] = Links()
        _tie_children(drafts, ties, children, records[number].id, links)
    if parent_id is not None:
        _tie_children(drafts, ties, plan.roots, parent_id, None)
    for i in drafts.special:
        if owns[i].depends_on:
            links = ties.get(i) or ties.setdefault(i, _loose_links(records[i]))
            for job_id in named_by(drafts, i):
                links.add(job_id, owns[i].on_dependency_failure, child=False)
    if chain:
        for before, i in zip(plan.roots, plan.roots[1:], strict=False):
            links = ties.get(i) or ties.setdefault(i, Links())
            on_failure = checked_policy(plan.nodes[before].on_failure)
            links.add(records[before].id, on_failure, child=False)
    for i, links in ties.items():
        records[i].need_side().links = links


def _loose_links(record: JobRecord) -> Links:
    """Ties of the record's own, with the parent that it has."""
    links = links_of(record)
    return Links() if links is None else Links(links.parent_id, links.on_failure)


def _tie_children(
    drafts: Drafts,
    ties: dict[int, Links],
    children: Sequence[int],
    parent_id: str,
    links: Links | None,
) -> None:
    """Gives the children their parent, and the parent, whose ties those are, its children. Those
    that wait for nothing have all in common that ties them: of a parent with very many children,
    most are such."""
    nodes, records = drafts.plan.nodes, drafts.records
    common: dict[str, tuple[int, Side]] = {}
    edges: dict[str, int] = {} if links is None else links.edges
    for number in children:
        record, text = records[number], nodes[number].on_failure
        known = common.get(text)
        if known is None:
            known = common[text] = _common(parent_id, checked_policy(text))
        code, record.side = known
        edges[record.id] = code
        own = ties.get(number)
        if own is not None:
            own.parent_id, own.on_failure = parent_id, policy_of(code)
    if links is not None:
        links.unmet = len(edges)


def _common(parent_id: str, policy: int) -> tuple[int, Side]:
    """The edge to a child with that policy, and what ties such a child to its parent."""
    side = Side()
    side.links = Links(parent_id, policy)
    side.view = side_view(side)
    side.common = side_row(side)
    return edge(policy, child=True), side
