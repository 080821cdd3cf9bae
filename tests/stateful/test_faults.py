"""The seeded faults follow the code, so that they can be tried at any time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stateful.faults import MUTATIONS
from tests.stateful.mutation import Mutation
from tests.stateful.mutations import ROOT, mutated


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_place_of_a_seeded_fault_is_there_once_and_the_fault_is_python(
    mutation: Mutation,
) -> None:
    path, text = mutated(ROOT / "bunqueue_py", mutation)
    assert text != path.read_text(encoding="utf-8")
    compile(text, path.name, "exec")


@pytest.mark.parametrize("times", [0, 2])
def test_a_fault_whose_place_is_not_there_once_is_an_error(times: int, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n" * times)
    with pytest.raises(LookupError, match=f"found {times} times in \\*.py"):
        mutated(tmp_path, Mutation("a fault", "*.py", "x = 1", "x = 2"))
