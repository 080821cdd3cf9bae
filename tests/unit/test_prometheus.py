"""`manager.metrics`: what Prometheus reads is what `stats()` says."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from bunqueue_py import ManagerConfig, QueueManager, Worker
from bunqueue_py.observe.metrics import Family, Sample, render
from bunqueue_py.testing import VirtualClock

FAMILIES = {
    "bunqueue_jobs",
    "bunqueue_jobs_added_total",
    "bunqueue_throughput",
    "bunqueue_queue_paused",
    "bunqueue_operation_duration_seconds",
    "bunqueue_job_wait_seconds",
    "bunqueue_job_run_seconds",
    "bunqueue_workers",
    "bunqueue_background_task_failures",
    "bunqueue_background_task_circuit_open",
    "bunqueue_listener_backlog",
    "bunqueue_listener_lost_total",
    "bunqueue_memory_entries",
}
STORAGE = {
    "bunqueue_storage_lag_seconds",
    "bunqueue_storage_rows_waiting",
    "bunqueue_storage_log_bytes",
    "bunqueue_storage_failing",
    "bunqueue_storage_commits_total",
    "bunqueue_storage_rows_written_total",
}


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Name and labels of every line, as prometheus_client's parser reads them."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} comes twice"
            found[key] = sample.value
    return found


def busy(manager: QueueManager, clock: VirtualClock) -> None:
    for n in range(5):
        manager.push("mail", n, attempts=1)
    for _ in range(2):
        job = manager.pull("mail")
        assert job is not None
        clock.advance(seconds=1)
        manager.ack(job)
    job = manager.pull("mail")
    assert job is not None
    manager.fail(job, "no")
    manager.pause("other")


def test_the_text_has_all_families_and_is_read_by_the_parser(tmp_path: Any) -> None:
    clock = VirtualClock()
    config = ManagerConfig(measure_times=True)
    path = tmp_path / "jobs.db"
    with QueueManager(path, clock=clock, background=False, config=config) as manager:
        busy(manager, clock)
        found = samples(manager.metrics.render_prometheus())
    names = {name for name, _ in found}
    for family in FAMILIES | STORAGE:
        assert any(name.startswith(family) for name in names), family
    mail = ("queue", "mail")
    assert found["bunqueue_jobs", (mail, ("state", "waiting"))] == 2
    assert found["bunqueue_jobs", (mail, ("state", "waiting-children"))] == 0
    assert found["bunqueue_jobs_total", (("outcome", "completed"), mail)] == 2
    assert found["bunqueue_jobs_total", (("outcome", "failed"), mail)] == 1
    assert found["bunqueue_jobs_added_total", (mail,)] == 5
    assert found["bunqueue_queue_paused", (("queue", "other"),)] == 1
    assert found["bunqueue_job_run_seconds_count", ()] == 3
    assert found["bunqueue_job_run_seconds_sum", ()] == 2
    assert found["bunqueue_job_run_seconds_bucket", (("le", "+Inf"),)] == 3
    assert found["bunqueue_job_run_seconds_bucket", (("le", "0.512"),)] == 1
    assert found["bunqueue_memory_entries", (("collection", "jobs"),)] == 5
    assert found["bunqueue_storage_failing", ()] == 0


def test_buckets_only_grow_and_end_with_the_count() -> None:
    clock = VirtualClock()
    config = ManagerConfig(measure_times=True)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        busy(manager, clock)
        text = manager.metrics.render_prometheus()
    for family in text_string_to_metric_families(text):
        if family.type != "histogram":
            continue
        series: dict[Any, list[float]] = {}
        for sample in family.samples:
            key = sample.labels.get("operation")
            if sample.name.endswith("_bucket"):
                series.setdefault(key, []).append(sample.value)
            elif sample.name.endswith("_count"):
                assert series[key][-1] == sample.value
        assert series
        for values in series.values():
            assert values == sorted(values)


def test_histograms_are_absent_unless_times_are_measured() -> None:
    with QueueManager(background=False, clock=VirtualClock()) as manager:
        manager.push("q")
        text = manager.metrics.render_prometheus()
    assert "histogram" not in text
    assert "bunqueue_storage" not in text


def test_of_many_queues_a_hundred_have_a_label_and_the_rest_are_summed() -> None:
    with QueueManager(background=False, clock=VirtualClock()) as manager:
        for n in range(130):
            manager.push(f"q{n}")
        found = samples(manager.metrics.render_prometheus())
    waiting = {
        dict(labels)["queue"]: value
        for (name, labels), value in found.items()
        if name == "bunqueue_jobs" and ("state", "waiting") in labels
    }
    assert len(waiting) == 101
    assert waiting["(other)"] == 30
    assert waiting["q99"] == 1
    assert sum(waiting.values()) == 130


@pytest.mark.parametrize(
    "value", ['a "quoted" one', "two\nlines", "back\\slash", '\\n"', "ä\u2028"]
)
def test_label_values_come_back_as_they_were(value: str) -> None:
    text = render([Family("x", "gauge", f"help {value}", [Sample("", {"label": value}, 1)])])
    ((name, labels),) = samples(text)
    assert (name, labels) == ("x", (("label", value),))


def test_the_collector_gives_a_registry_the_same_figures() -> None:
    clock = VirtualClock()
    config = ManagerConfig(measure_times=True)
    registry = CollectorRegistry()
    with QueueManager(clock=clock, background=False, config=config) as manager:
        registry.register(manager.metrics.collector())
        busy(manager, clock)
        exposed = generate_latest(registry).decode()
        assert samples(exposed) == samples(manager.metrics.render_prometheus())
        with pytest.raises(ValueError, match="Duplicated"):
            registry.register(manager.metrics.collector())


def test_the_collector_can_be_read_as_openmetrics() -> None:
    clock = VirtualClock()
    config = ManagerConfig(measure_times=True)
    registry = CollectorRegistry()
    with QueueManager(clock=clock, background=False, config=config) as manager:
        registry.register(manager.metrics.collector())
        busy(manager, clock)
        text = generate_openmetrics(registry).decode()
    families = {family.name for family in openmetrics_families(text)}
    assert {"bunqueue_jobs", "bunqueue_jobs_total", "bunqueue_job_wait_seconds"} <= families


def test_without_its_extra_the_collector_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in list(sys.modules):
        if name.startswith("prometheus_client") or name == "bunqueue_py.observe.collector":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client.metrics_core", None)
    with QueueManager(background=False, clock=VirtualClock()) as manager:
        with pytest.raises(ImportError, match=r"pip install 'bunqueue-py\[metrics\]'"):
            manager.metrics.collector()
        assert manager.metrics.render_prometheus()


def test_workers_and_background_tasks_are_counted() -> None:
    with QueueManager() as manager, Worker("q", lambda job: None, manager=manager, name="w"):
        found = samples(manager.metrics.render_prometheus())
    assert found["bunqueue_workers", ()] == 1
    assert found["bunqueue_background_task_failures", (("task", "deadlines"),)] == 0


def test_the_dashboard_of_the_docs_can_be_imported_and_its_metrics_exist(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()
    (block,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    dashboard = json.loads(block)
    clock = VirtualClock()
    config = ManagerConfig(measure_times=True)
    with QueueManager(
        tmp_path / "jobs.db", clock=clock, background=False, config=config
    ) as manager:
        busy(manager, clock)
        found = samples(manager.metrics.render_prometheus())
        families = [family.name for family in manager.metrics.families()]
    names = {name for name, _ in found}
    labels = {label for _, pairs in found for label, _ in pairs}
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(targets) == len(
        {(p["id"], t["refId"]) for p in dashboard["panels"] for t in p["targets"]}
    )
    for target in targets:
        used = re.findall(r"bunqueue_\w+", target["expr"])
        assert used
        assert names >= set(used), target
        for grouped in re.findall(r"by \(([\w, ]+)\)", target["expr"]):
            assert labels >= set(grouped.split(", ")), target
    for family in families:
        short = family.removeprefix("bunqueue_storage_")
        assert f"`{family}`" in page or f"`_{short}`" in page, "the page's table lacks it"
