"""`Entries` against a list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue_py.shard.entries import Entries
from bunqueue_py.shard.keys import SEQ_BITS

MASK = (1 << SEQ_BITS) - 1


def bound_of(moment: int) -> int:
    return moment << SEQ_BITS | MASK


def agree(entries: Entries, model: list[int], moment: int) -> None:
    entries.check()
    expected = [key for key in model if key >> SEQ_BITS > moment]
    assert list(entries.above(bound_of(moment))) == expected
    assert list(entries.above(bound_of(moment), newest_first=True)) == expected[::-1]


@given(
    # runs of equal moments, as batches leave them, and moments of each its own
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9)), max_size=60),
    st.lists(st.integers(0, 10**6), max_size=40),
    st.integers(0, 10),
    st.booleans(),
)
def test_what_is_above_a_bound_comes_in_the_order_in_which_it_came(
    runs: list[tuple[int, int]], gone: list[int], moment: int, at_once: bool
) -> None:
    moments = [at for n, at in runs for _ in range(n)]
    model = [at << SEQ_BITS | seq for seq, at in enumerate(moments, 1)]
    entries = Entries(model if at_once else ())
    if not at_once:
        for key in model:
            entries.append(key)
    for pick in gone:
        if model:
            entries.discard(model.pop(pick % len(model)))
    agree(entries, model, moment)
    model.append(5 << SEQ_BITS | 10**6)
    entries.append(model[-1])
    agree(entries, model, moment)


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097])
def test_every_number_of_entries_has_its_levels(n: int) -> None:
    entries, model = Entries(), []
    for seq in range(1, n + 1):
        model.append((seq * 7919 % 99 + 1) << SEQ_BITS | seq)
        entries.append(model[-1])
    for moment in (0, 50, 97, 98, 99, 100):
        agree(entries, model, moment)
    for key in model[n // 3 :: 2]:
        entries.discard(key)
    del model[n // 3 :: 2]
    for moment in (0, 98):
        agree(entries, model, moment)
