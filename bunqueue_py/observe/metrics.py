"""The families of `manager.metrics`, as Prometheus wants them, and their text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from ..model.figures import ManagerStats, QueueStats, Throughput, Totals
from ..model.spread import Distribution
from ..registry.task_errors import TaskLine
from ..state import State
from .stats import COUNTED, distributions, read

if TYPE_CHECKING:
    from .collector import QueueCollector

MAX_LABELLED = 100
OTHERS = "(other)"
"""The queue label of all queues beyond the first 100: no queue can be called so."""

Labels = dict[str, str]


class Sample(NamedTuple):
    """One line: what is added to the family's name, its labels and its value."""

    suffix: str
    labels: Labels
    value: float


class Family(NamedTuple):
    """Samples of one name. `kind` is gauge, counter or histogram."""

    name: str
    kind: str
    help: str
    samples: list[Sample]


class Metrics:
    """`manager.metrics`: the manager's figures for Prometheus."""

    def __init__(
        self,
        state: State,
        workers: Callable[[], int],
    ) -> None:
        self._state = state
        self._workers = workers

    def render_prometheus(self) -> str:
        """All figures in Prometheus' text format (version 0.0.4). Needs no extra. What it costs is
        what `stats()` costs.

        >>> from bunqueue_py import QueueManager
        >>> with QueueManager() as manager:
        ...     job = manager.push("emails")
        ...     text = manager.metrics.render_prometheus()
        >>> 'bunqueue_jobs{queue="emails",state="waiting"} 1' in text.splitlines()
        True
        """
        return render(self.families())

    def collector(self) -> QueueCollector:
        """The same for a registry of `prometheus_client`:
        `REGISTRY.register(manager.metrics.collector())`. Raises `ImportError` without the extra
        `metrics`."""
        from .collector import QueueCollector

        return QueueCollector(self.families)

    def families(self) -> list[Family]:
        """All families, read now."""
        stats = read(self._state)
        found = [*_queue_families(stats), *_times(distributions(self._state))]
        found.append(_one("bunqueue_workers", "Workers that run here.", self._workers()))
        found += _storage_families(stats)
        found += _task_families(self._state.errors.lines())
        ears = stats.listeners
        found.append(_one("bunqueue_listener_backlog", "Events to be delivered.", ears.backlog))
        lost = "Events lost because a listener was too slow."
        found.append(_one("bunqueue_listener_lost_total", lost, ears.lost, "counter"))
        found.append(
            Family(
                "bunqueue_memory_entries",
                "gauge",
                "Entries of each collection in memory; bytes where its name ends so.",
                [Sample("", {"collection": name}, n) for name, n in stats.memory.items()],
            )
        )
        return found


def _one(name: str, text: str, value: float, kind: str = "gauge") -> Family:
    return Family(name, kind, text, [Sample("", {}, value)])


def _task_families(lines: Iterable[TaskLine]) -> list[Family]:
    lines = list(lines)
    return [
        Family(
            "bunqueue_background_task_failures",
            "gauge",
            "Passes of a background task that have failed in a row.",
            [Sample("", {"task": line.name}, line.in_a_row) for line in lines],
        ),
        Family(
            "bunqueue_background_task_circuit_open",
            "gauge",
            "1 while a background task has failed so often that it is tried at a slower pace.",
            [Sample("", {"task": line.name}, line.open_since_ms is not None) for line in lines],
        ),
    ]


def _queue_families(stats: ManagerStats) -> Iterator[Family]:
    queues = list(stats.queues.items())
    labelled = queues[:MAX_LABELLED]
    if len(queues) > MAX_LABELLED:
        labelled.append((OTHERS, _summed([q for _, q in queues[MAX_LABELLED:]])))
    jobs, ended, added, rates, paused = [], [], [], [], []
    for name, queue in labelled:
        for state in COUNTED:
            labels = {"queue": name, "state": state.replace("_", "-")}
            jobs.append(Sample("", labels, getattr(queue.counts, state)))
        totals, rate = queue.totals, queue.throughput
        added.append(Sample("", {"queue": name}, totals.added))
        for outcome, n in (("completed", totals.completed), ("failed", totals.failed)):
            ended.append(Sample("", {"queue": name, "outcome": outcome}, n))
        for what, each in rate._asdict().items():
            rates.append(Sample("", {"queue": name, "what": what}, each))
        if name != OTHERS:
            paused.append(Sample("", {"queue": name}, float(queue.paused)))
    yield Family("bunqueue_jobs", "gauge", "Jobs by state.", jobs)
    yield Family("bunqueue_jobs_total", "counter", "Jobs that ended, since the start.", ended)
    yield Family("bunqueue_jobs_added_total", "counter", "Jobs added, since the start.", added)
    yield Family("bunqueue_throughput", "gauge", "Jobs a second, a moving average.", rates)
    yield Family("bunqueue_queue_paused", "gauge", "Whether the queue is paused.", paused)


def _summed(queues: list[QueueStats]) -> QueueStats:
    first = queues[0]
    counts = type(first.counts)(
        **{name: sum(getattr(q.counts, name) for q in queues) for name in COUNTED}
    )
    totals = Totals(*(sum(part) for part in zip(*(q.totals for q in queues), strict=True)))
    rates = Throughput(*(sum(part) for part in zip(*(q.throughput for q in queues), strict=True)))
    return QueueStats(counts, False, totals, rates)


def _times(found: dict[str, Distribution]) -> Iterator[Family]:
    if not found:
        return
    operations = [
        sample
        for name in ("push", "pull", "ack")
        for sample in _buckets({"operation": name}, found[name])
    ]
    yield Family(
        "bunqueue_operation_duration_seconds",
        "histogram",
        "How long push, pull (without the wait) and ack took.",
        operations,
    )
    for name, text in (
        ("wait", "How long jobs had waited when a run that has ended began."),
        ("run", "How long the runs that have ended took."),
    ):
        samples = list(_buckets({}, found[name]))
        yield Family(f"bunqueue_job_{name}_seconds", "histogram", text, samples)


def _buckets(labels: Labels, found: Distribution) -> Iterator[Sample]:
    seen = 0
    for k, n in enumerate(found.counts):
        seen += n
        bound = found.bounds[k] if k < len(found.bounds) else inf
        yield Sample("_bucket", {**labels, "le": number(bound)}, seen)
    yield Sample("_sum", labels, found.total)
    yield Sample("_count", labels, seen)


def _storage_families(stats: ManagerStats) -> Iterator[Family]:
    storage = stats.storage
    if storage is None:
        return
    yield _one("bunqueue_storage_lag_seconds", "Age of the oldest change not on disk.", storage.lag)
    yield _one("bunqueue_storage_rows_waiting", "Changes not on disk.", storage.rows_waiting)
    yield _one("bunqueue_storage_log_bytes", "Size of the write-ahead log.", storage.log_bytes)
    failing = float(storage.error is not None)
    yield _one("bunqueue_storage_failing", "Whether writing fails now.", failing)
    for name, text, n in (
        ("commits", "Transactions written.", storage.commits),
        ("rows_written", "Rows written.", storage.rows_written),
    ):
        yield _one(f"bunqueue_storage_{name}_total", text, n, "counter")


def render(families: Iterable[Family]) -> str:
    """The text of the families."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {_escaped(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for suffix, labels, value in family.samples:
            parts = ",".join(f'{name}="{_quoted(text)}"' for name, text in labels.items())
            shown = f"{{{parts}}}" if parts else ""
            lines.append(f"{family.name}{suffix}{shown} {number(value)}")
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """The number as Prometheus reads it."""
    if value == inf:
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
