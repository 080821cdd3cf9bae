"""A process that is killed loses nothing that was promised, and leaves nothing half done."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

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
