"""The process that is killed: threads that use a manager on a file and write into a journal what
they are about to do and what they were told. Run as `python -m tests.crash.child <JSON>`."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from typing import Any

from bunqueue_py import Ack, Backoff, Deduplication, JobSpec, ManagerConfig, QueueManager
from bunqueue_py.errors import DuplicateJobError, JobStateError
from bunqueue_py.model.job import ACTIVE, COMPLETED, FAILED, PENDING
from bunqueue_py.model.options import JobOptions
from bunqueue_py.ops import bulk, cut, finish
from bunqueue_py.shard import tally
from bunqueue_py.shard.dirty import Dirty
from bunqueue_py.storage.sqlite import commits
from tests.crash.books import Ledger, Op, line_of, payload

DURABLE = "durable" in JobOptions.__annotations__
SIZES = (0, 0, 0, 0, 40, 5_000, 20_000)


class Journal:
    """Lines that the kernel has when `write` returns, in the order of the calls."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: str, **more: Any) -> None:
        line = json.dumps({"what": what, "at": time.monotonic_ns(), **more}) + "\n"
        os.write(self._file, line.encode())


class Killer:
    """Ends the process at the n-th passage of a point: just before, just after, or shortly after
    it began."""

    def __init__(self, journal: Journal, plan: dict[str, Any], seed: int) -> None:
        self._journal = journal
        self._point, self._when, self._n = plan["point"], plan["when"], plan["n"]
        self._match = plan.get("match", "")
        self._passed = itertools.count(1)
        self._now = threading.Event()
        self._wait = random.Random(seed).choice((0.0, 0.0002, 0.001, 0.003))
        if self._when == "during":
            threading.Thread(target=self._lurk, daemon=True).start()

    def kill(self) -> None:
        self._journal.write("kill", point=f"{self._when} {self._point} {self._match}".strip())
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    def _lurk(self) -> None:
        self._now.wait()
        time.sleep(self._wait)
        self.kill()

    def around(self, point: str, text: str, call: Any, *arguments: Any) -> Any:
        if point != self._point or not text.startswith(self._match):
            return call(*arguments)
        here = next(self._passed) == self._n
        if here and self._when == "before":
            self.kill()
        if here and self._when == "during":
            self._now.set()
        found = call(*arguments)
        if here and self._when == "after":
            self.kill()
        return found


def inject(journal: Journal, killer: Killer) -> None:
    """Puts the points where the process may be killed into the engine."""

    class Connection(sqlite3.Connection):
        def execute(self, text: str, *parameters: Any) -> sqlite3.Cursor:
            first = text.lstrip()
            found: sqlite3.Cursor
            if first.startswith("PRAGMA wal_checkpoint"):
                found = killer.around("checkpoint", first, super().execute, text, *parameters)
            elif first.startswith(("PRAGMA", "SELECT", "WITH")):
                found = super().execute(text, *parameters)
            else:
                found = killer.around("statement", first, super().execute, text, *parameters)
            return found

    connect = sqlite3.connect

    def connect_to_ours(*arguments: Any, **options: Any) -> sqlite3.Connection:
        return connect(*arguments, **{"factory": Connection, **options})  # type: ignore[no-any-return]

    sqlite3.connect = connect_to_ours  # type: ignore[assignment]

    verbs = ("add", "add_new", "add_lane", "mark", "tombstone", "result", "payload", "keep", "swap")
    for name in verbs:
        point = "swap" if name == "swap" else "mark"
        setattr(Dirty, name, _around(killer, point, getattr(Dirty, name)))
    for module, name in ((finish, "mark_completed"), (bulk, "mark_begun"), (bulk, "mark_ended")):
        setattr(module, name, _around(killer, "mark", getattr(module, name)))

    from bunqueue_py.storage.sqlite.commits import Committer

    commit = Committer.commit

    def told(self: Committer, marks: Any) -> None:
        killer.around("commit", "", commit, self, marks)
        journal.write("committed")

    Committer.commit = told  # type: ignore[method-assign]
    collect = cut.collect

    def collected(state: Any, begin: Any) -> None:
        def begun() -> Any:
            journal.write("cut")
            return begin()

        collect(state, begun)

    cut.collect = collected


def _around(killer: Killer, point: str, call: Any) -> Any:
    def passed(*arguments: Any) -> Any:
        return killer.around(point, "", call, *arguments)

    return passed


class Actor:
    """One thread's work: random operations on its own queues, each in the journal."""

    def __init__(
        self, manager: QueueManager, journal: Journal, t: int, generation: int, seed: int
    ) -> None:
        self.manager = manager
        self.journal = journal
        self.t = t
        self.rng = random.Random(seed * 1000 + t)
        self.queues = [f"g{generation}-t{t}-{name}" for name in "abc"]
        self.ledger = Ledger()
        self.numbers = itertools.count()
        self.operations = itertools.count()
        self.held: dict[int, Any] = {}
        self.ids: dict[int, str] = {}
        self.hook_numbers = itertools.count()
        self.hooks: dict[int, str] = {}
        #: the jobs whose outcomes are on disk when the call returns
        self.durable: set[int] = set()

    def run(self) -> None:
        kinds, weights = zip(*WEIGHTS.items(), strict=True)
        while True:
            kind = self.rng.choices(kinds, weights)[0]
            queue = self.rng.choice(self.queues)
            getattr(self, kind)(queue)

    def do(self, op: Op, call: Any) -> Any:
        op = {"t": self.t, "i": next(self.operations), **op}
        self.journal.write("begin", **op)
        end, found = call()
        op["end"] = end
        self.journal.write("end", t=self.t, end=end, durable=self.is_durable(op))
        self.ledger.apply(op)
        return found

    def is_durable(self, op: Op) -> bool:
        """Whether what returned is promised to be on disk."""
        if op["op"] == "push":
            return any(job["n"] in self.durable for job in op["jobs"])
        if op["op"] == "ack":
            return any(n in self.durable for n, _ in op["items"])
        return op["op"] == "flush"

    def some(self, queue: str, state: int) -> int | None:
        found = self.ledger.numbers(queue, state)
        return self.rng.choice(found) if found else None

    # -- the operations ----------------------------------------------------------------------

    def push(self, queue: str) -> None:
        rng = self.rng
        many = rng.choice((1, 1, 1, rng.randint(2, 20)))
        durable = DURABLE and rng.random() < 0.1
        plain = rng.random() < 0.5
        jobs = []
        for _ in range(many):
            n = next(self.numbers)
            jobs.append(
                {
                    "n": n,
                    "size": rng.choice(SIZES),
                    "attempts": rng.randint(1, 4),
                    "priority": rng.choice((0, 0, 0, 5, -3)),
                    "custom": rng.choice((None, None, None, f"c{n % 7}")),
                    "key": rng.choice((None, None, None, f"k{n % 5}")),
                    "group": rng.choice((None, None, f"group{n % 3}")),
                    "dropped": rng.random() < 0.2,
                }
            )
            if plain:
                jobs[-1].update(priority=0, custom=None, key=None, group=None, dropped=False)
                jobs[-1].update(attempts=3, size=rng.choice(SIZES[:5]))

        def call() -> tuple[Any, None]:
            options = [_options(job, durable=durable) for job in jobs]
            datas = [payload(job["n"], job["size"]) for job in jobs]
            if many == 1:
                made = [self.manager.push(queue, datas[0], **options[0])]
            else:
                specs = [
                    JobSpec("default", data, **more)
                    for data, more in zip(datas, options, strict=True)
                ]
                made = self.manager.push_batch(queue, specs)
            duplicates = []
            for job, answer in zip(jobs, made, strict=True):
                if answer.duplicate:
                    duplicates.append(job["n"])
                else:
                    self.ids[job["n"]] = answer.id
                    if durable:
                        self.durable.add(job["n"])
            return {"duplicates": duplicates}, None

        op: Op = {"op": "push", "q": queue, "jobs": jobs}
        self.do(op, call)

    def pull(self, queue: str) -> None:
        many = self.rng.choice((1, 1, 8))

        def call() -> tuple[Any, None]:
            if many == 1:
                job = self.manager.pull(queue, owner=queue)
                got = [] if job is None else [job]
            else:
                got = self.manager.pull_batch(queue, many, owner=queue)
            numbers = [job.data["n"] for job in got]
            self.held.update(zip(numbers, got, strict=True))
            return {"got": numbers}, None

        self.do({"op": "pull", "q": queue, "max": many}, call)

    def ack(self, queue: str) -> None:
        mine = self.ledger.numbers(queue, ACTIVE)
        if not mine:
            return
        chosen = mine[: self.rng.choice((1, 1, 5))]
        items = [[n, self.rng.choice((None, 0, 30, 6_000))] for n in chosen]

        def call() -> tuple[Any, None]:
            acks = [
                Ack(self.held.pop(n), None if size is None else "r" * size, None)
                for n, size in items
            ]
            if len(acks) == 1:
                outcomes = [self.manager.ack(acks[0].job, acks[0].result)]
            else:
                outcomes = self.manager.ack_batch(acks)
            assert all(outcome.applied for outcome in outcomes), outcomes
            return None, None

        self.do({"op": "ack", "q": queue, "items": items}, call)

    def fail(self, queue: str) -> None:
        n, final = self.some(queue, ACTIVE), self.rng.random() < 0.2
        if n is not None:
            self.do(
                {"op": "fail", "q": queue, "n": n, "final": final},
                lambda: (None, self.manager.fail(self.held.pop(n), "no", unrecoverable=final)),
            )

    def release(self, queue: str) -> None:
        n = self.some(queue, ACTIVE)
        if n is not None:
            self.do(
                {"op": "release", "q": queue, "n": n},
                lambda: (None, self.manager.release(self.held.pop(n))),
            )

    def release_owner(self, queue: str) -> None:
        """A worker dies: what it holds, which is all that runs in its queue, is given back."""

        def call() -> tuple[Any, None]:
            mine = self.ledger.numbers(queue, ACTIVE)
            released = self.manager.release_owner(queue)
            assert released == len(mine), (released, mine)
            for n in mine:
                del self.held[n]
            return {"back": mine}, None

        self.do({"op": "release_owner", "q": queue}, call)

    def log(self, queue: str) -> None:
        n = self.some(queue, ACTIVE)
        if n is not None:
            text = line_of(n, self.ledger.jobs[n].logs)
            self.do({"op": "log", "q": queue, "n": n}, lambda: (None, self.held[n].log(text)))

    def hook(self, queue: str) -> None:
        k, hooks = next(self.hook_numbers), queue[:-1] + "hooks"

        def call() -> tuple[Any, None]:
            url = f"http://127.0.0.1:9/{hooks}/{k}"
            self.hooks[k] = self.manager.webhooks.add(url, ["job.stalled"])
            return None, None

        self.do({"op": "hook", "q": hooks, "k": k}, call)

    def hook_off(self, queue: str) -> None:
        hooks = queue[:-1] + "hooks"
        for n in self.ledger.numbers(hooks, COMPLETED)[:1]:
            hook_id = self.hooks[-1 - n]
            self.do(
                {"op": "hook_off", "q": hooks, "k": -1 - n},
                lambda hook_id=hook_id: (None, self.manager.webhooks.disable(hook_id)),
            )

    def unhook(self, queue: str) -> None:
        hooks = queue[:-1] + "hooks"
        for n in self.ledger.numbers(hooks, FAILED)[:1]:
            hook_id = self.hooks.pop(-1 - n)
            self.do(
                {"op": "unhook", "q": hooks, "k": -1 - n},
                lambda hook_id=hook_id: (None, self.manager.webhooks.remove(hook_id)),
            )

    def remove(self, queue: str) -> None:
        n = self.some(queue, self.rng.choice((PENDING, FAILED)))
        if n is not None:
            self.do(
                {"op": "remove", "q": queue, "n": n},
                lambda: (None, self.manager.remove(self.ids[n])),
            )

    def update(self, queue: str) -> None:
        n, size = self.some(queue, PENDING), self.rng.choice(SIZES)
        if n is not None:
            self.do(
                {"op": "update", "q": queue, "n": n, "size": size},
                lambda: (None, self.manager.update_data(self.ids[n], payload(n, size))),
            )

    def priority(self, queue: str) -> None:
        n, to = self.some(queue, PENDING), self.rng.randint(-5, 5)
        if n is not None:
            self.do(
                {"op": "priority", "q": queue, "n": n, "to": to},
                lambda: (None, self.manager.change_priority(self.ids[n], to)),
            )

    def revive(self, queue: str) -> None:
        n = self.some(queue, FAILED)
        if n is not None:

            def call() -> tuple[Any, None]:
                try:
                    return {"revived": self.manager.dlq_retry(queue, self.ids[n])}, None
                except (DuplicateJobError, JobStateError):  # its key or custom id is another's now
                    return {"revived": False}, None

            self.do({"op": "revive", "q": queue, "n": n}, call)

    def drain(self, queue: str) -> None:
        self.do({"op": "drain", "q": queue}, lambda: (None, self.manager.drain(queue)))

    def flush(self, queue: str) -> None:
        self.do({"op": "flush", "q": queue}, lambda: (None, self.manager.flush()))


WEIGHTS = {
    "push": 30,
    "pull": 22,
    "ack": 20,
    "fail": 10,
    "log": 8,
    "hook": 1,
    "hook_off": 1,
    "unhook": 1,
    "release": 3,
    "release_owner": 0.5,
    "remove": 3,
    "update": 4,
    "priority": 3,
    "revive": 2,
    "drain": 0.3,
    "flush": 1,
}


def _options(job: dict[str, Any], *, durable: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "attempts": job["attempts"],
        "priority": job["priority"],
        "backoff": Backoff.fixed(0),
        "remove_on_complete": job["dropped"],
    }
    if job["custom"] is not None:
        found["custom_id"] = job["custom"]
    if job["key"] is not None:
        found["deduplication"] = Deduplication(job["key"])
    if job["group"] is not None:
        found["group"] = job["group"]
    if durable:
        found["durable"] = True
    return found


def main(plan: dict[str, Any]) -> None:
    journal = Journal(plan["journal"])
    inject(journal, Killer(journal, plan, plan["seed"]))
    if plan["seed"] % 2:
        # so that the few rows of a round go by the column too
        commits.MIN_PACKED = 1
    # and counts are kept more than once in a round
    tally.TICK_MS = 20
    config = ManagerConfig(shards=4, allow_private_webhooks=True)
    manager = QueueManager(plan["path"], config=config)
    actors = [
        Actor(manager, journal, t, plan["generation"], plan["seed"]) for t in range(plan["threads"])
    ]
    journal.write("ready")
    for actor in actors:
        threading.Thread(target=_run, args=(actor, journal), daemon=True).start()
    end = time.monotonic() + plan["seconds"]
    while time.monotonic() < end:
        # the clean-up is at it all the time, and loses nothing
        manager._state.cleanup.arm(manager._state.now())
        time.sleep(0.002)
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
