"""The collector for `prometheus_client`: the one module that imports it (extra `metrics`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .metrics import Family

try:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "metrics.collector() needs prometheus_client: pip install 'bunqueue-py[metrics]'. "
        "metrics.render_prometheus() does without"
    ) from error


class QueueCollector(Collector):
    """Hands a manager's figures to a registry, read anew for each scrape."""

    def __init__(self, families: Callable[[], list[Family]]) -> None:
        self._families = families

    def describe(self) -> Iterator[Metric]:
        """The same families without samples; a registry asks so that no name comes twice."""
        for family in self._families():
            yield _metric(family)

    def collect(self) -> Iterator[Metric]:
        """All families, read now."""
        for family in self._families():
            metric = _metric(family)
            for suffix, labels, value in family.samples:
                metric.add_sample(f"{family.name}{suffix}", labels, value)
            yield metric


def _metric(family: Family) -> Metric:
    name, kind = family.name, family.kind
    if name == "bunqueue_jobs_total":
        # As a counter its family would be called as the gauge of the jobs by state is, and the
        # OpenMetrics format has one type for a name.
        kind = "unknown"
    elif kind == "counter":
        name = name.removesuffix("_total")
    return Metric(name, family.help, kind)
