"""What a crash test's threads did, as a ledger that can be compared with what is on disk.

Each thread works alone on queues of its own, so after a crash these queues must be exactly what
they were after some number of its operations: never half an operation, never a later one without
an earlier one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from bunqueue_py.model.job import ACTIVE, COMPLETED, FAILED, PENDING

Op = dict[str, Any]
"""An operation as it stands in the journal: thread `t`, number `i`, kind `op`, and what it is of.
`end` is what it answered."""


class Entry(NamedTuple):
    """All that must survive of a job; `logs` is how many lines its log has. A webhook stands in
    the books as a job that is done with, under a number below zero; one that is off has failed."""

    queue: str
    state: int
    attempts: int
    of: int
    data: int
    priority: int
    custom: str | None
    key: str | None
    group: str | None
    result: int | None
    dropped: bool
    logs: int = 0


def hook_entry(queue: str, k: int, *, on: bool) -> tuple[int, Entry]:
    """The k-th webhook of a thread, and where it stands."""
    state = COMPLETED if on else FAILED
    return -1 - k, Entry(queue, state, 0, 0, k, 0, None, None, None, None, False)


def line_of(n: int, number: int) -> str:
    """The text of that line in the log of that job."""
    return f"line {number} of job {n}"


def payload(n: int, size: int) -> dict[str, Any]:
    return {"n": n, "pad": "x" * size}


class Ledger:
    """The jobs of one thread, by their numbers; `touched` are those of the last operations."""

    def __init__(self) -> None:
        self.jobs: dict[int, Entry] = {}
        self.touched: set[int] = set()

    def put(self, n: int, entry: Entry | None) -> None:
        self.touched.add(n)
        if entry is None:
            self.jobs.pop(n, None)
        else:
            self.jobs[n] = entry

    def change(self, n: int, **changes: Any) -> None:
        self.put(n, self.jobs[n]._replace(**changes))

    def numbers(self, queue: str, state: int) -> list[int]:
        return [n for n, e in self.jobs.items() if e.queue == queue and e.state == state]

    def apply(self, op: Op) -> None:
        getattr(self, "_" + op["op"])(op)

    def _push(self, op: Op) -> None:
        for job in op["jobs"]:
            if job["n"] in op.get("end", {}).get("duplicates", ()):
                continue
            # a finished job gives way to a new one of its custom id
            for n, old in list(self.jobs.items()) if job["custom"] is not None else ():
                same = old.queue == op["q"] and old.custom == job["custom"]
                if same and old.state in (COMPLETED, FAILED):
                    self.put(n, None)
            entry = Entry(
                op["q"], PENDING, 0, job["attempts"], job["size"], job["priority"], job["custom"],
                job["key"], job["group"], None, job["dropped"],
            )  # fmt: skip
            self.put(job["n"], entry)

    def _pull(self, op: Op) -> None:
        for n in op["end"]["got"]:
            self.change(n, state=ACTIVE)

    def _ack(self, op: Op) -> None:
        for n, size in op["items"]:
            if self.jobs[n].dropped:
                self.put(n, None)
            else:
                self.change(n, state=COMPLETED, result=size)

    def _fail(self, op: Op) -> None:
        self.put(op["n"], after_run(self.jobs[op["n"]], final=op["final"]))

    def _release(self, op: Op) -> None:
        self.change(op["n"], state=PENDING)

    def _release_owner(self, op: Op) -> None:
        for n in op["end"]["back"]:
            self.change(n, state=PENDING)

    def _remove(self, op: Op) -> None:
        self.put(op["n"], None)

    def _update(self, op: Op) -> None:
        self.change(op["n"], data=op["size"])

    def _priority(self, op: Op) -> None:
        self.change(op["n"], priority=op["to"])

    def _revive(self, op: Op) -> None:
        if op["end"]["revived"]:
            self.change(op["n"], state=PENDING, attempts=0)

    def _log(self, op: Op) -> None:
        self.change(op["n"], logs=self.jobs[op["n"]].logs + 1)

    def _hook(self, op: Op) -> None:
        self.put(*hook_entry(op["q"], op["k"], on=True))

    def _hook_off(self, op: Op) -> None:
        self.put(*hook_entry(op["q"], op["k"], on=False))

    def _unhook(self, op: Op) -> None:
        self.put(-1 - op["k"], None)

    def _drain(self, op: Op) -> None:
        for n in self.numbers(op["q"], PENDING):
            self.put(n, None)

    def _flush(self, op: Op) -> None:
        pass


def after_run(entry: Entry, *, final: bool = False) -> Entry:
    """What a run that ended badly makes of its job."""
    attempts = entry.attempts + 1
    if final or attempts >= entry.of:
        return entry._replace(state=FAILED, attempts=attempts)
    return entry._replace(state=PENDING, attempts=attempts)


def recovered(jobs: dict[int, Entry]) -> dict[int, Entry]:
    """What the next process makes of the jobs of one that was killed."""
    return {n: after_run(e) if e.state == ACTIVE else e for n, e in jobs.items()}


# -- the journal -----------------------------------------------------------------------------------


class Journal(NamedTuple):
    """What a child wrote before it died: each thread's operations that returned, the one under way,
    and how many had returned before the last cut that was committed, or by its last flush."""

    done: dict[int, list[Op]]
    under_way: dict[int, Op]
    promised: dict[int, int]
    commits: int
    killed_at: int | None
    point: str | None
    last_commit: int | None


def read_journal(lines: Iterable[str]) -> Journal:
    done: dict[int, list[Op]] = {}
    under_way: dict[int, Op] = {}
    promised: dict[int, int] = {}
    at_cut: dict[int, int] = {}
    commits, killed_at, point, last, cut_at = 0, None, None, None, 0
    for line in lines:
        entry = json.loads(line)
        what, t = entry["what"], entry.get("t")
        if what == "begin":
            done.setdefault(t, [])
            under_way[t] = entry
        elif what == "end":
            op = under_way.pop(t)
            op["end"], op["at"] = entry["end"], entry["at"]
            done[t].append(op)
            if entry["durable"]:
                promised[t] = len(done[t])
        elif what == "cut":
            at_cut, cut_at = {t: len(ops) for t, ops in done.items()}, entry["at"]
        elif what == "committed":
            commits, last = commits + 1, cut_at
            for t, number in at_cut.items():
                promised[t] = max(promised.get(t, 0), number)
        elif what == "kill":
            killed_at, point = entry["at"], entry["point"]
    return Journal(done, under_way, promised, commits, killed_at, point, last)


class Balance(NamedTuple):
    """One thread's books: how many of its operations are on disk, of how many that returned; which
    of those that are not was the first; the jobs as they are on disk."""

    t: int
    kept: int
    returned: int
    first_lost: Op | None
    jobs: dict[int, Entry]


def balance(t: int, journal: Journal, disk: dict[int, Entry]) -> Balance:
    """Finds after which of the thread's operations the disk is as it is; fails if after none."""
    done, promised = journal.done[t], journal.promised.get(t, 0)
    ledger, kept = Ledger(), -1
    wrong = set(disk)
    nearest: tuple[int, set[int]] = (len(wrong) + 1, set())
    for number in range(len(done) + 1):
        if number:
            ledger.apply(done[number - 1])
        _compare(ledger, disk, wrong)
        if not wrong:
            kept = number
        elif number >= promised and len(wrong) <= nearest[0]:
            nearest = len(wrong), set(wrong)
    last = journal.under_way.get(t)
    if last is not None:
        for op in _outcomes(last, ledger, disk):
            tried = Ledger()
            tried.jobs = dict(ledger.jobs)
            tried.apply(op)
            if tried.jobs == disk:
                kept = len(done)
    if kept < 0:
        shown = {n: (disk.get(n), ledger.jobs.get(n)) for n in sorted(nearest[1])[:5]}
        raise AssertionError(
            f"thread {t}: the disk is at no moment of its {len(done)} operations; at the nearest "
            f"these are wrong (disk, after all): {shown}; under way: {last}"
        )
    assert kept >= promised, (
        f"thread {t}: {promised} operations were committed, and {kept} are there; lost: "
        f"{done[kept]}"
    )
    return Balance(t, kept, len(done), done[kept] if kept < len(done) else None, disk)


def _compare(ledger: Ledger, disk: dict[int, Entry], wrong: set[int]) -> None:
    for n in ledger.touched:
        if ledger.jobs.get(n) == disk.get(n):
            wrong.discard(n)
        else:
            wrong.add(n)
    ledger.touched.clear()


def _outcomes(op: Op, ledger: Ledger, disk: dict[int, Entry]) -> Iterator[Op]:
    """How an operation may have ended that did not return."""
    if op["op"] == "pull":
        got = [n for n in ledger.numbers(op["q"], PENDING) if _is(disk, n, ACTIVE)]
        yield {**op, "end": {"got": got[: op["max"]]}}
    elif op["op"] == "release_owner":
        back = [n for n in ledger.numbers(op["q"], ACTIVE) if _is(disk, n, PENDING)]
        yield {**op, "end": {"back": back}}
    elif op["op"] == "push":
        new = {job["n"] for job in op["jobs"] if job["key"] is None and job["custom"] is None}
        known = {job["n"] for job in op["jobs"] if job["n"] in disk}
        if new <= known:
            missing = {job["n"] for job in op["jobs"]} - known
            yield {**op, "end": {"duplicates": list(missing)}}
    else:
        yield {**op, "end": {"revived": True}}


def _is(disk: dict[int, Entry], n: int, state: int) -> bool:
    return n in disk and disk[n].state == state
