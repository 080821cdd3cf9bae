"""A reference model of jobs that wait for jobs: SPEC 8 as lists and loops, and nothing else.

It is one of its own, beside `Model`: priorities, groups, limits, keys and time are left out, since
they do nothing to what waits for what. Whoever drives it tells it the ids that the engine has
drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, field

GATED, READY, ACTIVE, COMPLETED, FAILED = "gated", "ready", "active", "completed", "failed"
LIVE = (GATED, READY, ACTIVE)


@dataclass
class FlowJob:
    """A job: what it waits for, and what a failure of each of those does to it (`edges`, by id),
    and how each of them has been settled (`settled`)."""

    id: str
    queue: str
    state: str = READY
    parent: str | None = None
    on_failure: str = "fail_parent"
    edges: dict[str, str] = field(default_factory=dict)
    settled: dict[str, str] = field(default_factory=dict)
    children: list[str] = field(default_factory=list)
    removed_on_complete: bool = False
    result: str | None = None
    reason: str | None = None

    @property
    def unmet(self) -> list[str]:
        """What it waits for."""
        return [other for other in self.edges if other not in self.settled]


class FlowModel:
    """All jobs that are there, by id, and how those that have left ended (`left`)."""

    def __init__(self) -> None:
        self.jobs: dict[str, FlowJob] = {}
        self.left: dict[str, FlowJob] = {}

    # -- coming in ---------------------------------------------------------------------------

    def add(self, job: FlowJob) -> None:
        """A job comes in, behind all that it waits for."""
        self.jobs[job.id] = job
        self.judge(job)

    def knows(self, job_id: str) -> bool:
        """Whether a new job may wait for that one."""
        return job_id in self.jobs or (
            job_id in self.left and self.left[job_id].state in (COMPLETED, FAILED)
        )

    def add_child(self, parent: FlowJob, child: FlowJob) -> None:
        """A child comes in whose parent lives."""
        parent.edges[child.id] = child.on_failure
        parent.children.append(child.id)
        if parent.state == READY:
            parent.state = GATED
        self.jobs[child.id] = child
        self.judge(child)

    def judge(self, job: FlowJob) -> None:
        """Looks at all that the job waits for, and says where it stands."""
        for other in job.unmet:
            self.settle(job, other)
            if job.state == FAILED:
                return
        if job.state in (READY, GATED):
            job.state = GATED if job.unmet else READY

    # -- what ends ---------------------------------------------------------------------------

    def settle(self, job: FlowJob, other_id: str) -> None:
        """Applies to the job how that other one stands."""
        if other_id not in job.unmet:
            return
        other = self.jobs.get(other_id)
        gone = other is None
        if other is None:
            other = self.left.get(other_id)
        if other is not None and other.state == COMPLETED:
            job.settled[other_id] = "met"
            return
        if (other is not None and other.state in LIVE and not gone) or job.state not in (
            GATED,
            READY,
        ):
            return
        policy = job.edges[other_id]
        if policy == "wait" and not gone:
            return
        if policy in ("fail_parent", "wait"):
            self.fail(job, "dependency_failed")
        elif policy == "continue_parent":
            job.settled[other_id] = "failed"
            for rest in job.unmet:
                job.settled[rest] = "loose"
        else:
            job.settled[other_id] = "ignored" if policy == "ignore_dependency" else "dropped"

    def tell(self, job_id: str) -> None:
        """That job has ended: those that wait for it are told, and those that wait for them."""
        for job in list(self.jobs.values()):
            if job_id not in job.edges or job.state in (COMPLETED,):
                continue
            if job.settled.get(job_id) == "loose":
                ended = self.jobs.get(job_id) or self.left.get(job_id)
                if ended is not None and ended.state == COMPLETED:
                    job.settled[job_id] = "met"
                continue
            if job.state == GATED:
                self.settle(job, job_id)
                if job.state == GATED and not job.unmet:
                    job.state = READY
            else:
                ended = self.jobs.get(job_id) or self.left.get(job_id)
                if job_id in job.unmet and ended is not None and ended.state == COMPLETED:
                    job.settled[job_id] = "met"

    def complete(self, job: FlowJob, result: str | None) -> None:
        """An active job has completed."""
        job.state, job.result = COMPLETED, result
        if job.removed_on_complete:
            self.left[job.id] = self.jobs.pop(job.id)
        self.tell(job.id)

    def fail(self, job: FlowJob, reason: str) -> None:
        """A live job fails for good."""
        job.state, job.reason = FAILED, reason
        self.tell(job.id)

    def remove(self, job: FlowJob) -> None:
        """A job that is not active is gone."""
        self.left[job.id] = self.jobs.pop(job.id)
        self.tell(job.id)

    # -- what begins again -------------------------------------------------------------------

    def may_retry(self, job: FlowJob) -> bool:
        """Whether nothing that it cannot do without has failed."""
        for other_id in job.unmet:
            policy = job.edges[other_id]
            if policy not in ("fail_parent", "wait"):
                continue
            other = self.jobs.get(other_id)
            left = self.left.get(other_id) if other is None else None
            if other is None and (left is None or left.state != COMPLETED):
                return False
            if other is not None and other.state == FAILED and policy == "fail_parent":
                return False
        return True

    def retry(self, job: FlowJob) -> None:
        """A finished job waits again for what is unmet."""
        job.state, job.reason, job.result = READY, None, None
        self.judge(job)

    def park(self, job: FlowJob) -> None:
        """An active job waits for its children."""
        job.state = GATED
        self.judge(job)

    def drop(self, job: FlowJob, other_id: str) -> bool:
        """The job waits for that one no longer; says whether it knew it."""
        known = other_id in job.edges and job.settled.get(other_id) != "dropped"
        if other_id in job.edges:
            del job.edges[other_id]
            job.settled.pop(other_id, None)
            if other_id in job.children:
                job.children.remove(other_id)
        if job.state == GATED and not job.unmet:
            job.state = READY
        return known

    def remove_unprocessed(self, job: FlowJob) -> list[str]:
        """Removes the job's children that wait for their turn, with all that only they waited for;
        returns the ids of the children."""
        gone = self._waiting_children(job)
        for child_id in gone:
            self.drop(job, child_id)
        stack = list(gone)
        while stack:
            child = self.jobs.get(stack.pop())
            if child is None:
                continue
            below = self._waiting_children(child)
            if child.state in (GATED, READY):
                self.remove(child)
                stack += [other for other in below if not self._is_needed(other)]
            else:
                child.parent = None
        return gone

    def _waiting_children(self, job: FlowJob) -> list[str]:
        return [
            other
            for other in job.unmet
            if other in job.children
            and other in self.jobs
            and self.jobs[other].state in (GATED, READY)
        ]

    def _is_needed(self, job_id: str) -> bool:
        return any(job_id in job.edges and job.state != COMPLETED for job in self.jobs.values())

    def shown_children(self, job: FlowJob) -> list[str]:
        """The children that the job still knows."""
        return [child for child in job.children if job.settled.get(child) != "dropped"]

    def values(self, job: FlowJob) -> dict[str, str | None]:
        """The results that the job may read."""
        found: dict[str, str | None] = {}
        for other_id in job.edges:
            if job.settled.get(other_id) == "met":
                other = self.jobs.get(other_id) or self.left.get(other_id)
                assert other is not None
                found[other_id] = other.result
        return found
