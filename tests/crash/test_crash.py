"""A process that is killed loses nothing that was promised, and leaves nothing half done."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.flow_rounds import Found, play_big_flow, play_flows
from tests.crash.rounds import Losses, play, play_one

pytestmark = pytest.mark.skipif(os.name == "nt", reason="kills with SIGKILL")


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_kill_at_a_commit_splits_nothing_and_loses_nothing_that_was_committed(
    tmp_path: Path, when: str
) -> None:
    point = {"point": "statement", "when": when, "match": "COMMIT", "n": 2}
    play_one(tmp_path / "jobs.db", {**point, "threads": 1, "seed": 1}, Losses())


@pytest.mark.slow
def test_whenever_and_wherever_it_is_killed_the_books_balance(
    tmp_path: Path, slow_rounds: Callable[[int, int], int]
) -> None:
    losses = Losses()
    for seed in range(slow_rounds(10, 200)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            play(folder / "jobs.db", seed, losses)
        except Exception as error:
            raise AssertionError(f"seed {seed}, whose files are in {folder}: {error}") from error
    print(losses.report())
    assert losses.commits
    assert losses.operations


@pytest.mark.slow
def test_flows_are_there_whole_or_not_at_all_and_no_effect_is_half_applied(
    tmp_path: Path, slow_rounds: Callable[[int, int], int]
) -> None:
    """The crash cases, with flows half done."""
    found = Found()
    for seed in range(slow_rounds(5, 100)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            play_flows(folder / "jobs.db", seed, found)
        except Exception as error:
            raise AssertionError(f"seed {seed}, whose files are in {folder}: {error}") from error
    print(found.report())
    assert found["committed flows"]
    assert found["jobs with children"]


@pytest.mark.slow
def test_a_flow_of_10_000_that_is_killed_is_there_whole_or_not_at_all(
    tmp_path: Path, slow_rounds: Callable[[int, int], int]
) -> None:
    found = Found()
    for seed in range(slow_rounds(2, 30)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            play_big_flow(folder / "jobs.db", seed, found)
        except Exception as error:
            raise AssertionError(f"seed {seed}, whose files are in {folder}: {error}") from error
    print(found.report())
    assert found["kills"]
