"""Deduplication keys of one queue and the jobs that own them. Guarded."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from ..model.job import ACTIVE, JobRecord
from ..model.side import EXTEND, REPLACE, Claim

if TYPE_CHECKING:
    from .queue_state import QueueState

LOST = 0
"""The `until_ms` of a claim whose key went to another job, or was released."""

SWEEP_AT = 64
SWEEP_STEP = 2
"""How many expired keys a newly taken one clears away: more than it adds."""

HeldEntry = tuple[int, int, JobRecord]


class UniqueKeys:
    """Which job owns which key: at most one a key.

    The key and the moment until which it is taken stand in the record's own `claim`, so a record
    tells by itself whether it owns its key. Expiry is judged when asked. A key with hold="live"
    leaves with its job. One with hold="ttl" stays after it, and `owners` is then the only place
    that knows it, so a rebuild keeps what is in here. These stand in `held` too, a heap by expiry
    from which every newly taken one clears up to two expired ones away; so there are never more
    expired ones than there were unexpired ones before. All verbs are O(1), but for the O(log n)
    of a held key.
    """

    __slots__ = ("held", "numbers", "owners")

    def __init__(self) -> None:
        self.owners: dict[str, JobRecord] = {}
        self.held: list[HeldEntry] = []
        self.numbers = 0

    def __len__(self) -> int:
        return len(self.owners)

    def owner(self, key: str, now: int) -> JobRecord | None:
        """The job that owns the key now; finished or gone only where the key is held by ttl."""
        record = self.owners.get(key)
        return record if record is not None and claim_of(record).stands(now) else None

    def judge(self, claim: Claim, now: int) -> JobRecord | None:
        """The owner of which a newcomer with that claim is a duplicate, its ttl reset if the
        newcomer so asks; `None` if the newcomer may come in."""
        owner = self.original(claim, now)
        if owner is not None and claim.mode == EXTEND:
            _extend(claim_of(owner), claim.ttl_ms, now)
        return owner

    def original(self, claim: Claim, now: int) -> JobRecord | None:
        """What `judge` would answer; changes nothing."""
        owner = self.owner(claim.key, now)
        if owner is None or (claim.mode == REPLACE and owner.state <= ACTIVE):
            return None
        return owner

    def take(self, record: JobRecord, now: int) -> JobRecord | None:
        """Gives the record its key, which `judge` has granted or nobody live owns, its ttl from
        now. Returns the pending job that had it until now, for the caller to remove; an active
        one keeps running without it."""
        claim = claim_of(record)
        prior = self.owners.get(claim.key)
        self.take_new(record, claim, now)
        if prior is None or prior is record or not claim_of(prior).stands(now):
            return None
        if prior.state < ACTIVE:
            # its claim stands: should an exception land before its removal, the rebuild finds two
            # that claim the key, and removes it
            return prior
        claim_of(prior).until_ms = LOST
        return None

    def take_new(self, record: JobRecord, claim: Claim, now: int) -> None:
        """`take` where the caller has seen that `owners` does not have the key."""
        if claim.ttl_ms is not None:
            claim.until_ms = now + claim.ttl_ms
        self.owners[claim.key] = record
        if claim.held:
            self._hold(record, now)

    def hold_for(self, record: JobRecord) -> None:
        """Gives a key that is held by time back to a job that has ended, as it was before a
        restart."""
        claim = claim_of(record)
        assert claim.until_ms is not None
        self.owners[claim.key] = record
        self.numbers += 1
        heappush(self.held, (claim.until_ms, self.numbers, record))

    def free(self, record: JobRecord) -> None:
        """The record has ended: its key is free, unless that is held by ttl or has moved on."""
        claim = claim_of(record)
        if not claim.held and self.owners.get(claim.key) is record:
            del self.owners[claim.key]

    def release(self, key: str, now: int) -> bool:
        """Frees the key, whoever owns it; says whether it was taken."""
        owner = self.owners.get(key)
        if owner is None:
            return False
        claim = claim_of(owner)
        taken = claim.stands(now)
        # first: a claim that no longer stands does not get its key back in a rebuild
        claim.until_ms = LOST
        del self.owners[key]
        return taken

    def rebuild(self, records: Iterable[JobRecord], now: int) -> list[JobRecord]:
        """Makes the table anew from the live among the records, which come in the order of their
        admission, and from the held keys whose jobs have ended. Returns the pending jobs that
        were being replaced by a newer one when the section broke off, for the caller to
        remove."""
        owners = {
            key: record
            for key, record in self.owners.items()
            if record.state > ACTIVE and claim_of(record).held and claim_of(record).stands(now)
        }
        replaced = []
        for record in records:
            claim = record.claim
            if record.state > ACTIVE or claim is None or not claim.stands(now):
                continue
            if claim.ttl_ms is not None and claim.until_ms is None:
                # admitted, but its ttl had not begun
                claim.begin(now)
            prior = owners.get(claim.key)
            owners[claim.key] = record
            if prior is None:
                continue
            if prior.state < ACTIVE:
                replaced.append(prior)
            else:
                claim_of(prior).until_ms = LOST
        self.owners = owners
        self._sweep()
        return replaced

    def _hold(self, record: JobRecord, now: int) -> None:
        until = claim_of(record).until_ms
        assert until is not None
        self.numbers += 1
        heappush(self.held, (until, self.numbers, record))
        for _ in range(SWEEP_STEP):
            if self.held[0][0] > now:
                break
            self._let_go(now)
        if len(self.held) > 2 * len(self.owners) + SWEEP_AT:
            self._sweep()

    def _let_go(self, now: int) -> None:
        """Judges the head of `held`, whose moment has come: it goes, or has been extended."""
        _, number, record = self.held[0]
        claim = claim_of(record)
        if self.owners.get(claim.key) is record:
            if claim.until_ms is not None and claim.until_ms > now:
                heappush(self.held, (claim.until_ms, number, record))
            else:
                del self.owners[claim.key]
        heappop(self.held)

    def _sweep(self) -> None:
        held: list[HeldEntry] = []
        for record in self.owners.values():
            claim = claim_of(record)
            if claim.held and claim.until_ms is not None:
                held.append((claim.until_ms, len(held), record))
        heapify(held)
        self.numbers = len(held)
        self.held = held

    def check(self) -> None:
        """Asserts its invariants."""
        waiting_to_go = {id(record) for _, _, record in self.held}
        for key, record in self.owners.items():
            claim = claim_of(record)
            assert claim.key == key, "a key under another name"
            assert claim.until_ms != LOST, "an owner that lost its key"
            assert (claim.until_ms is None) == (claim.ttl_ms is None), "a ttl that never began"
            if claim.held:
                assert id(record) in waiting_to_go, "a held key that would never go"
            else:
                assert record.state <= ACTIVE, "a key outlives its job"
        heap = self.held
        assert all(heap[(i - 1) >> 1][:2] <= e[:2] for i, e in enumerate(heap) if i), "heap order"
        assert len(heap) <= 2 * len(self.owners) + SWEEP_AT + 2, "stale held keys pile up"

    def check_complete(self, records: Iterable[JobRecord], now: int) -> None:
        """Asserts that every live one of the records whose claim stands has its key."""
        for record in records:
            claim = record.claim
            if record.state <= ACTIVE and claim is not None and claim.stands(now):
                assert self.owners.get(claim.key) is record, "a live job without its key"


def claim_of(record: JobRecord) -> Claim:
    """The record's claim; the caller knows that it has one."""
    assert record.claim is not None
    return record.claim


def key_conflict(queue: QueueState, record: JobRecord, now: int) -> str | None:
    """The id of another live job that owns the record's key, so that the record must not come
    back to life; `None` if nothing is in its way."""
    if record.claim is None:
        return None
    owner = queue.unique_keys.owner(record.claim.key, now)
    if owner is None or owner is record or owner.state > ACTIVE:
        return None
    return owner.id


def _extend(claim: Claim, ttl_ms: int | None, now: int) -> None:
    """Counts the ttl anew from now: the caller's, else its own. Never makes it end earlier."""
    if ttl_ms is None:
        ttl_ms = claim.ttl_ms
    if ttl_ms is not None and claim.until_ms is not None:
        claim.until_ms = max(claim.until_ms, now + ttl_ms)
