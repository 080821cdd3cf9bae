"""The tally of a queue against a dictionary that counts every end in its minute."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bunqueue_py import Totals
from bunqueue_py.shard.tally import COMPLETED, FAILED, MINUTE_MS, TICK_MS, Tally

HOUR_MS = 60 * MINUTE_MS
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 999, 1000, 1001, 59_999, 60_000, HOUR_MS - 1, HOUR_MS, 9 * HOUR_MS]),
        st.sampled_from([COMPLETED, FAILED]),
        st.integers(1, 3),
    ),
    max_size=40,
)


@given(start=st.integers(0, 2 * HOUR_MS), steps=STEPS)
def test_every_end_is_counted_once_in_its_own_minute(
    start: int, steps: list[tuple[int, int, int]]
) -> None:
    now, look_ms, ended = start, 0, [0, 0]
    tally = Tally(Totals(), now)
    expected: tuple[Counter[int], Counter[int]] = Counter(), Counter()
    for wait, kind, n in steps:
        now += wait
        for _ in range(n):
            # what ops/tally.look does
            if now >= look_ms:
                look_ms = (now // TICK_MS + 1) * TICK_MS
                if now >= tally.next_ms:
                    tally.look(Totals(0, *ended), now)
            ended[kind] += 1
            expected[kind][now // MINUTE_MS * MINUTE_MS] += 1
        tally.check()
    for kind in (COMPLETED, FAILED):
        found = tally.open_points(kind, Totals(0, *ended))
        for hour, text in tally.closed.items():
            found += tally.points_of(kind, hour, text)
        assert dict(found) == expected[kind]
        assert len(found) == len(dict(found)), "a minute comes twice"


@given(start=st.integers(0, HOUR_MS), waits=st.lists(st.integers(0, 5000), max_size=30))
def test_throughput_is_never_negative_and_dies_away(start: int, waits: list[int]) -> None:
    now = start
    tally = Tally(Totals(), now)
    done = 0
    for wait in waits:
        now += wait
        if now >= tally.next_ms:
            tally.look(Totals(done, done, 0), now)
        done += 1
        rates = tally.rates_at(Totals(done, done, 0), now)
        assert all(rate >= 0 for rate in rates)
        assert rates.completed <= done
    assert tally.rates_at(Totals(done, done, 0), now + 3_600_000).completed < 0.01
