"""What a job asks of its deduplication key beyond owning it for as long as it lives."""

from __future__ import annotations

SKIP, EXTEND, REPLACE = range(3)

LOST = 0
"""The `until_ms` of a claim whose key went to another job, or was released."""


class Claim:
    """One job's claim to its key. `mode` is SKIP, EXTEND or REPLACE, what its push asks for;
    `held` is hold="ttl". `until_ms` is when the claim ends by time, `None` for never."""

    __slots__ = ("held", "mode", "ttl_ms", "until_ms")

    def __init__(
        self,
        ttl_ms: int | None,
        mode: int = SKIP,
        held: bool = False,
        until_ms: int | None = None,
    ) -> None:
        self.ttl_ms = ttl_ms
        self.mode = mode
        self.held = held
        self.until_ms = until_ms

    def begin(self, now: int) -> None:
        """Counts its ttl from now on."""
        self.until_ms = None if self.ttl_ms is None else now + self.ttl_ms


AnyClaim = Claim | int | None
"""What a record has. `None`: its key is its own for as long as it lives. An integer: at most that
many milliseconds from its admission on. Nearly every claim is one of these two, and spares its push
the making of an object, and the garbage collector one more to look at for every job that waits.
"""


def is_held(claim: AnyClaim) -> bool:
    """Whether the key stays taken when the job has ended."""
    return isinstance(claim, Claim) and claim.held
