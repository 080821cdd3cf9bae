"""In which order jobs entered an index, with a way past those that are due. Guarded."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from .keys import SEQ_BITS

_SEQ_MASK = (1 << SEQ_BITS) - 1
_SHIFT = 4
_FAN = 1 << _SHIFT


class Entries:
    """Keys (a moment above an admission number) in the order in which they came, which is that of
    their admission numbers.

    The first of `levels` has the keys; each entry of a later one is the largest of 16 of the level
    below. So `above` steps over a stretch of keys that are not wanted in O(log n), however long it
    is. What is discarded leaves its bare admission number, which is above no bound, until the
    keys are put together anew. `append` and `discard` are O(log n).
    """

    __slots__ = ("levels",)

    def __init__(self, keys: Iterable[int] = ()) -> None:
        self.levels: list[list[int]] = [list(keys)]
        while len(self.levels[-1]) > _FAN:
            self._add_level()

    def _add_level(self) -> None:
        below = self.levels[-1]
        self.levels.append([max(below[i : i + _FAN]) for i in range(0, len(below), _FAN)])

    def __len__(self) -> int:
        return len(self.levels[0])

    def append(self, key: int) -> None:
        """Takes a key whose admission number is the highest so far."""
        levels = self.levels
        at = len(levels[0])
        levels[0].append(key)
        for i in range(1, len(levels)):
            level = levels[i]
            at >>= _SHIFT
            if at == len(level):
                level.append(key)
            elif level[at] < key:
                level[at] = key
            else:
                return
        if len(levels[-1]) > _FAN:
            self._add_level()

    def discard(self, key: int) -> None:
        """Takes out a key that is in here."""
        below = self.levels[0]
        seq = key & _SEQ_MASK
        at = bisect_left(below, seq, key=_seq)
        below[at] = seq
        for i in range(1, len(self.levels)):
            level = self.levels[i]
            at >>= _SHIFT
            if level[at] != key:
                return
            level[at] = max(below[at << _SHIFT : (at + 1) << _SHIFT])
            below = level

    def above(self, bound: int, *, newest_first: bool = False) -> Iterator[int]:
        """The keys above that bound, in order; the way over others, however many, is O(log n)."""
        levels = self.levels
        top = height = len(levels) - 1
        way, edge = (-1, _FAN - 1) if newest_first else (1, 0)
        at = len(levels[top]) - 1 if newest_first else 0
        while 0 <= at < len(levels[height]):
            largest = levels[height][at]
            if largest > bound:
                if height:
                    # some of them are wanted
                    height -= 1
                    at = min((at << _SHIFT) + edge, len(levels[height]) - 1)
                    continue
                yield largest
            at += way
            while height < top and at % _FAN == edge:
                height += 1
                at >>= _SHIFT

    def check(self) -> None:
        """Asserts its invariants."""
        seqs = [key & _SEQ_MASK for key in self.levels[0]]
        assert seqs == sorted(set(seqs)), "entries out of order"
        assert self.levels == Entries(self.levels[0]).levels, "levels of the entries"


def _seq(key: int) -> int:
    return key & _SEQ_MASK
