"""The process that is killed amid flows. Run as `python -m tests.crash.flow_child <JSON>`.

Each thread adds trees of its own queues, runs and fails their jobs, retries, adds children and
takes them away. A job's data say of which flow it is, how many jobs that had, and whether it is the
root, which is never removed.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import threading
import time
from typing import Any

from bunqueue_py import BunqueueError, FlowNode, FlowProducer, Job, ManagerConfig, QueueManager
from bunqueue_py.model.links import POLICIES
from tests.crash.child import Journal, Killer, inject

MOST = 12
"""Jobs of one flow."""


class Actor:
    """One thread: its operations stand in the journal, numbered, with the flow that they add."""

    def __init__(self, manager: QueueManager, journal: Journal, t: int, plan: dict[str, Any]):
        self.manager, self.journal, self.t = manager, journal, t
        self.flows = FlowProducer(manager)
        self.rng = random.Random(plan["seed"] * 1000 + t)
        self.queues = [f"g{plan['generation']}-t{t}-{name}" for name in "abc"]
        self.numbers = itertools.count()
        self.ids: list[str] = []

    def run(self) -> None:
        steps = (self.add, self.add, self.work, self.work, self.work, self.work, self.work)
        others = (self.retry, self.remove, self.add_child, self.drop)
        for i in itertools.count():
            step = self.rng.choice(steps if self.rng.random() < 0.85 else others)
            flow = next(self.numbers) if step == self.add else None
            self.journal.write("begin", t=self.t, i=i, op="flow", flow=flow)
            if flow is None:
                try:
                    step()
                except BunqueueError:
                    pass  # the job is in another state by now
            else:
                self.add_flow(flow)
            self.journal.write("end", t=self.t, end=None, durable=False)

    def add(self) -> None:
        raise NotImplementedError

    def add_flow(self, flow: int) -> None:
        size = self.rng.randint(1, MOST)
        root = self.node(flow, size, root=True)
        nodes = [root]
        for _ in range(size - 1):
            node = self.node(flow, size)
            self.rng.choice(nodes).children.append(node)
            nodes.append(node)
        tree: Any = self.flows.add(root)
        self.ids += [node.job.id for node in tree.walk()]
        del self.ids[:-60]

    def node(self, flow: int, size: int, *, root: bool = False) -> FlowNode:
        rng = self.rng
        many = [f"no {n}" for n in range(40)] if rng.random() < 0.1 else []
        return FlowNode(
            rng.choice(self.queues),
            "node",
            {"flow": flow, "of": size, "root": root, "pad": many},
            on_failure=rng.choice(POLICIES),
            remove_on_complete=not root and rng.random() < 0.5,
            remove_on_fail=not root and rng.random() < 0.2,
            attempts=1,
        )

    def work(self) -> None:
        job = self.manager.pull(self.rng.choice(self.queues))
        if job is None:
            return
        if self.rng.random() < 0.25:
            self.manager.fail(job, "no", unrecoverable=True)
        elif self.rng.random() < 0.5:
            self.manager.ack(job, f"result of {job.id}")
        else:
            self.go_on(job)

    def go_on(self, job: Job) -> None:
        """Ends it as a worker's thread does, and leaves what it has taken with that half done."""
        backend = self.manager.backend
        result = backend.encode(f"result of {job.id}")
        handle = backend.wait_handle()
        _, _, following = backend.go_on(job.id, job.token, result, 30_000, "w", handle)
        if following is not None and self.rng.random() < 0.8:
            self.manager.ack(following, f"result of {following.id}")

    def some(self) -> str:
        return self.rng.choice(self.ids) if self.ids else "nobody"

    def retry(self) -> None:
        self.manager.retry(self.some())

    def remove(self) -> None:
        found = self.manager.get_job(self.some())
        if found is None or found.data["root"]:
            return
        # with one that was retried its first result is gone, and whoever failed with that has
        # nothing to read any more: rightly so, but it could not be told from a loss
        if all(entry.state != "retried" for entry in found.timeline):
            found.remove()

    def add_child(self) -> None:
        found = self.manager.get_job(self.some())
        if found is not None:
            # of no flow that is counted
            node = self.node(-1, 1)
            self.ids.append(found.add_child(node).id)

    def drop(self) -> None:
        found = self.manager.get_job(self.some())
        if found is not None and found.children_ids:
            found.remove_dependency(self.rng.choice(found.children_ids))


BIG = 10_000
"""Jobs of the flow that is added by itself."""


def big_flow() -> FlowNode:
    """As many jobs as a flow may have, on three levels and over three queues."""
    inner = [
        FlowNode(f"b{n % 3}", "inner", children=[FlowNode(f"b{k % 3}", "leaf") for k in range(100)])
        for n in range(99)
    ]
    return FlowNode("b0", "root", children=inner)


def main(plan: dict[str, Any]) -> None:
    big = big_flow() if plan.get("big") else None
    journal = Journal(plan["journal"])
    inject(journal, Killer(journal, plan, plan["seed"]))
    manager = QueueManager(plan["path"], config=ManagerConfig(shards=4))
    journal.write("ready")
    if big is not None:
        FlowProducer(manager).add(big)
        journal.write("added")
        manager.flush()
        journal.write("flushed")
        os.kill(os.getpid(), signal.SIGKILL)
    for t in range(plan["threads"]):
        actor = Actor(manager, journal, t, plan)
        threading.Thread(target=_run, args=(actor, journal), daemon=True).start()
    time.sleep(plan["seconds"])
    journal.write("kill", point="in the end")
    os.kill(os.getpid(), signal.SIGKILL)


def _run(actor: Actor, journal: Journal) -> None:
    try:
        actor.run()
    except BaseException as error:
        journal.write("broken", t=actor.t, error=repr(error))
        raise


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
