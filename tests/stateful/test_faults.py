"""The seeded faults follow the code, so that they can be tried at any time."""

from __future__ import annotations

import pytest

from tests.stateful.faults import MUTATIONS, Mutation
from tests.stateful.mutations import ROOT, mutated


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_place_of_a_seeded_fault_is_there_once_and_the_fault_is_python(
    mutation: Mutation,
) -> None:
    source = (ROOT / "bunqueue_py" / mutation.file).read_text(encoding="utf-8")
    made = mutated(source, mutation)
    assert made != source
    compile(made, mutation.file, "exec")


@pytest.mark.parametrize("times", [0, 2])
def test_a_fault_whose_place_is_not_there_once_is_an_error(times: int) -> None:
    with pytest.raises(LookupError, match=f"found {times} times in a.py"):
        mutated("x = 1\n" * times, Mutation("a fault", "a.py", "x = 1", "x = 2"))
