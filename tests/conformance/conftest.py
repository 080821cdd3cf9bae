"""The suite of the engine over SQLite: a manager that is given no storage gets a file of its own,
and when it closes, what is on disk is compared with what is in memory.

Tests marked slow, and those of a great number of things, are left to the engine's own suite; of a
test with many cases a few are run that lie far apart.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import QueueManager, SqliteStorage
from bunqueue_py import manager as manager_module
from bunqueue_py.shard.shard import BROKEN, OPEN
from bunqueue_py.storage.sqlite import commits
from tests.storage_check import check_storage

HERE = Path(__file__).parent
CASES = 2
"""How many cases of one test are run over SQLite; what they differ in is seldom what is kept."""

KEPT_BY_NAME = "its back-off is a function within the test, which a file cannot keep by its name"
MANY = "thousands of jobs or groups, each with a row; it is about memory or time"
IN_EVERY_RUN = {
    "test_push_pull_on_sqlite.py",
    "test_tokens_on_sqlite.py",
    "test_flows_on_sqlite.py",
}
"""The others are marked slow: all together they take a minute."""

LEFT_OUT = {
    "test_in_memory_and_where_nothing_is_counted_nothing_is_armed": "about memory",
    "test_a_firing_and_its_run_take_few_calls": "a file's writing has calls of its own",
    "test_a_hundred_thousand_changes_leave_no_memory_behind": MANY,
    "test_ten_thousand_dead_letters_that_come_and_go_leave_no_memory_behind": MANY,
    "test_a_late_pass_over_thousands_of_runs_misses_none": MANY,
    "test_many_that_are_due_at_once_are_all_retried_in_bounded_passes": MANY,
    "test_a_job_that_made_room_before_its_age_is_not_held_in_memory": MANY,
    "test_a_job_that_left_by_count_before_its_age_is_not_held_in_memory": MANY,
    "test_a_claim_of_several_does_not_look_through_the_groups": MANY,
    "test_999_blocked_groups_of_1000_cost_the_open_one_nothing": MANY,
    "test_10_000_groups_used_once_leave_no_memory_behind": MANY,
    "test_a_cool_down_of_a_group_without_jobs_is_forgotten_when_it_has_passed": MANY,
    "test_expired_held_keys_leave_no_memory_behind": MANY,
    "test_keys_that_are_taken_and_released_all_day_leave_no_memory_behind": MANY,
    "test_keep_completed_bounds_all_queues_together_however_they_are_spread": MANY,
    "test_no_job_starts_early_and_equal_due_times_run_first_in_first_out": MANY,
    "test_iter_jobs_and_counts_per_priority_know_grouped_jobs": MANY,
    "test_a_walk_passes_no_grouped_job_twice_while_groups_come_and_go": MANY,
    "test_retry_all_goes_on_behind_more_refused_ones_than_one_bite_holds": MANY,
    "test_a_filtered_page_counts_only_what_it_finds": MANY,
    "test_a_waiter_gets_a_result_that_is_evicted_at_once": "the file still has that result",
    "test_a_back_off_with_one_attempt_is_accepted_and_never_used": KEPT_BY_NAME,
    "test_a_custom_back_off_is_shown_the_attempt_that_failed_and_its_error": KEPT_BY_NAME,
    "test_a_custom_back_off_that_returns_nonsense_gives_the_default_wait_and_says_so": KEPT_BY_NAME,
    "test_a_custom_back_off_that_raises_loses_no_job": KEPT_BY_NAME,
    "test_a_custom_back_off_that_raises_in_a_sweep_loses_no_job": KEPT_BY_NAME,
    "test_a_custom_back_off_may_use_the_manager": KEPT_BY_NAME,
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is said above."""
    cases: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if HERE in item.path.parents:
            cases.setdefault((item.path, getattr(item, "originalname", item.name)), []).append(item)
    gone: set[pytest.Item] = set()
    for (_, name), of_one in cases.items():
        if name in LEFT_OUT:
            for item in of_one:
                item.add_marker(pytest.mark.skip(reason=LEFT_OUT[name]))
        step = max(1, (len(of_one) - 1) / (CASES - 1))
        kept = {of_one[min(round(i * step), len(of_one) - 1)] for i in range(CASES)}
        slow = {
            i for i in of_one if i.get_closest_marker("slow") and getattr(i, "cls", None) is None
        }
        gone.update(item for item in of_one if item not in kept or item in slow)
        if of_one[0].path.name not in IN_EVERY_RUN:
            for item in of_one:
                item.add_marker(pytest.mark.slow)
    config.hook.pytest_deselected(items=[item for item in items if item in gone])
    items[:] = [item for item in items if item not in gone]


@pytest.fixture(autouse=True)
def on_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every manager of the test lives on a file, unless the test names a storage itself."""
    # few rows go to the file as many do
    monkeypatch.setattr(commits, "MIN_PACKED", 1)
    chosen, close = manager_module._storage, QueueManager.close
    numbers, paths = itertools.count(), dict[int, str]()

    def storage(given: Any) -> Any:
        if given is not None:
            return chosen(given)
        path = str(tmp_path / f"jobs{next(numbers)}.db")
        made = SqliteStorage(path)
        paths[id(made)] = path
        return made

    def checked_close(self: QueueManager, *arguments: Any, **options: Any) -> bool:
        path = paths.pop(id(self._state.storage), None)
        try:
            # one whose section broke off is rebuilt by the check's flush
            if path is not None and {s.gate for s in self._state.shards.shards} <= {OPEN, BROKEN}:
                check_storage(self, path)
        finally:
            done = close(self, *arguments, **options)
        return done

    monkeypatch.setattr(manager_module, "_storage", storage)
    monkeypatch.setattr(QueueManager, "close", checked_close)
