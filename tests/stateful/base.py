"""The state machine but for its rules: an engine, a model beside it, and what must agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition

from bunqueue_py import ANY, BunqueueError, ManagerConfig, Queue, QueueManager
from bunqueue_py.testing import SeededIds, VirtualClock
from bunqueue_py.testing.model import Model, ModelJob
from tests.stateful.choices import OPTIONS, QUEUES, Chosen
from tests.stateful.compare import compare, compare_job

KEEP_RESULTS = 4
MOST = 30
"""With more jobs than that no more come in."""

STATISTICS: Counter[str] = Counter()
"""How often each verb was called, what it answered, how many steps and runs there were."""


Rule = Callable[..., Any]


def needs(n: int, *states: str) -> Callable[[Rule], Rule]:
    """The rule needs that many jobs in those states (in any, if none is named)."""

    def decorate(rule: Rule) -> Rule:
        def may(self: Base) -> bool:
            there = [job for job in self.model.jobs if not states or job.state in states]
            return len(there) >= n and self.last != rule.__name__

        return precondition(may)(rule)

    return decorate


def seldom(function: Rule) -> Rule:
    """Stands right above the function of a rule, and has it never run twice in a row: few steps of
    a run are to be spent on looking about, and in many runs few rules are drawn at all."""

    @wraps(function)
    def call(self: Base, *arguments: Any, **named: Any) -> None:
        function(self, *arguments, **named)
        self.last = function.__name__

    return call


class Base(RuleBasedStateMachine):
    """Every rule begins with `tick`, at a millisecond of its own, and calls each verb through
    `both`. `issued` are the tokens that were ever drawn, `ids` the jobs that ever were."""

    on_disk = False
    last = ""

    @initialize(
        seed=st.integers(0, 3),
        listens=st.booleans(),
        batch=st.lists(OPTIONS, min_size=2, max_size=6),
    )
    def start(self, seed: int, listens: bool, batch: list[Chosen]) -> None:
        STATISTICS["runs"] += 1
        self.clock = VirtualClock()
        self.model = Model(self.clock, KEEP_RESULTS)
        self.seeded = SeededIds(seed)
        self.seeded.random = lambda: self.model.die
        self.listens = listens
        self.ids: list[str] = []
        self.issued: list[tuple[str, str]] = []
        self.pulled: dict[str, Any] = {}
        self.gaps: list[str] = []
        self.serial = 0
        self.open()
        for name in QUEUES:
            self.model.queue(name)
        for i, chosen in enumerate(batch):
            self.push_one(QUEUES[i % 3 == 2], chosen)

    def push_one(self, queue: str, chosen: Chosen) -> None:
        raise NotImplementedError

    def open(self) -> None:
        """A manager on what there is."""
        self.manager = QueueManager(
            self.storage(),
            clock=self.clock,
            background=False,
            config=ManagerConfig(keep_results=KEEP_RESULTS, shards=2, empty_queue_after=60),
            _ids=self.seeded,
        )
        self.queues = {name: Queue(name, self.manager) for name in QUEUES}
        self.sequences: dict[str, int] = {}
        if self.listens:
            self.manager.events.subscribe(self.hear)

    def hear(self, event: Any) -> None:
        """SPEC 11: the events of a queue are numbered without gaps."""
        STATISTICS[f"event {event.type}"] += 1
        before = self.sequences.get(event.queue)
        # a queue that the clean-up has let go begins anew
        anew = event.type == "queue_created" and event.sequence == 1
        if before is not None and event.sequence != before + 1 and not anew:
            self.gaps.append(f"event {event.sequence} of {event.queue} follows {before}")
        self.sequences[event.queue] = event.sequence

    def storage(self) -> Any:
        return None

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            try:
                self.pull_all()
            finally:
                self.manager.close()

    # -- what rules are made of --------------------------------------------------------------

    def tick(self, milliseconds: int = 1) -> None:
        self.last = ""
        self.clock.advance(milliseconds=milliseconds)

    def both(self, verb: str, engine: Callable[[], Any], model: Callable[[], Any]) -> Any:
        """Calls the two, and asserts that they answer alike, be it by the same error."""
        answers = []
        for call in (engine, model):
            try:
                answer = call()
            except BunqueueError as error:
                answer = type(error)
            answers.append(answer)
        found, expected = answers
        said = found.__name__ if isinstance(found, type) else ""
        STATISTICS[f"{verb} {said}".strip()] += 1
        assert found == expected, f"{verb}: {found}, and not {expected}"
        return found

    def some_id(self, pick: int) -> str:
        """A job that is there, or was, or never has been."""
        there = [job.id for job in self.model.jobs]
        if pick > 36 or not there:
            return self.ids[pick % len(self.ids)] if self.ids else "nobody"
        return there[pick % len(there)]

    def held(self, pick: int) -> tuple[str, str | None]:
        """A run under way, and its token."""
        active = [job for job in self.model.jobs if job.state == "active"]
        job = active[pick % len(active)]
        return job.id, job.token

    def not_held(self, pick: int, how: str) -> tuple[str, str | None]:
        """A job, and a token that was never its own, or is so no longer: mostly."""
        if how == "stale" and self.issued:
            return self.issued[pick % len(self.issued)]
        job_id = self.some_id(pick)
        if how == "missing" or not self.issued:
            return job_id, None
        return job_id, self.issued[pick % len(self.issued)][1]

    def take(
        self,
        queue: str,
        pulled: list[Any],
        lock: float | None,
        owner: str | None,
        group: Any,
        n: int,
    ) -> None:
        """The engine has delivered these: the model agrees, and goes along."""
        model = self.model
        if not model.queue(queue).limits.paused:
            model.move_due(queue)
        self.learn_expired(queue)
        lease = None if lock is None else round(lock * 1000)
        for seen in pulled:
            choice = model.next_ones(queue, group)
            job = model.find(seen.id)
            assert job in choice, f"{seen.id} was pulled; next are {[job.id for job in choice]}"
            assert isinstance(job, ModelJob)
            model.start(job, seen.token, lease, owner, group)
            compare_job(seen, job, model.now, model.wall)
            self.issued.append((seen.id, seen.token))
            self.pulled[seen.id] = seen
        del self.issued[:-40]
        STATISTICS["jobs pulled"] += len(pulled)
        if len(pulled) < n:
            left = model.next_ones(queue, group)
            assert not left, f"{[job.id for job in left]} could have been pulled"

    def learn_expired(self, queue: str) -> None:
        """A pull may fail those whose ttl ran out, as the next sweep would."""
        model = self.model
        for job in model.of(queue, "pending"):
            if job.is_expired(model.now) and self.manager.get_state(job.id) != job.shown(
                model.now, model.wall
            ):
                model.finalize(job, "ttl_expired")

    def pull_all(self) -> None:
        """At the end of a run: whatever may start, in its order."""
        self.tick()
        for queue in QUEUES:
            while True:
                job = self.manager.pull(queue)
                self.take(queue, [] if job is None else [job], 30, None, ANY, 1)
                if job is None:
                    break

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "manager"):
            STATISTICS["steps"] += 1
            self.model.mind_groups()
            compare(self.manager, self.model)
            assert not self.gaps, self.gaps
