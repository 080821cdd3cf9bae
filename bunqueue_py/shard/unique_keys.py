"""Deduplication keys of one queue and the jobs that own them. Guarded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from ..model.claim import EXTEND, LOST, REPLACE, Claim, is_held
from ..model.job import ACTIVE, REMOVED, JobRecord

if TYPE_CHECKING:
    from .queue_state import QueueState

SWEEP_AT = 64
SWEEP_STEP = 2
"""How many expired keys a newly taken one clears away: more than it adds."""

HeldEntry = tuple[int, int, JobRecord]


class UniqueKeys:
    """Which job owns which key: at most one a key.

    The key stands in the record's `unique_key`, the moment until which it is taken in its `claim`,
    so a record tells by itself whether it owns its key. Expiry is judged when asked. A key with
    hold="live" leaves with its job. One with hold="ttl" stays after it, and `owners` is then the
    only place that knows it, so a rebuild keeps what is in here. These stand in `held` too, a heap
    by expiry from which every newly taken one clears up to two expired ones away; so there are
    never more expired ones than there were unexpired ones before. All verbs are O(1), but for the
    O(log n) of a held key.

    `freed` is called with a key before it leaves a job that is gone, whose row nobody else marks.
    """

    __slots__ = ("freed", "held", "numbers", "owners")

    def __init__(self, freed: Callable[[str], None] | None = None) -> None:
        self.freed = freed
        self.owners: dict[str, JobRecord] = {}
        self.held: list[HeldEntry] = []
        self.numbers = 0

    def __len__(self) -> int:
        return len(self.owners)

    def owner(self, key: str, now: int) -> JobRecord | None:
        """The job that owns the key now; finished or gone only where the key is held by ttl."""
        record = self.owners.get(key)
        return record if record is not None and stands(record, now) else None

    def judge(self, newcomer: JobRecord, now: int) -> JobRecord | None:
        """The owner of which a newcomer with a key is a duplicate, its ttl reset if the newcomer
        so asks; `None` if the newcomer may come in."""
        owner = self.original(newcomer, now)
        claim = newcomer.claim
        if owner is not None and isinstance(claim, Claim) and claim.mode == EXTEND:
            _extend(owner, claim.ttl_ms, now)
        return owner

    def original(self, newcomer: JobRecord, now: int) -> JobRecord | None:
        """What `judge` would answer; changes nothing."""
        owner, claim = self.owner(key_of(newcomer), now), newcomer.claim
        if owner is None or owner.state > ACTIVE:
            return owner
        return None if isinstance(claim, Claim) and claim.mode == REPLACE else owner

    def take(self, record: JobRecord, now: int) -> JobRecord | None:
        """Gives the record its key, which `judge` has granted or nobody live owns, its ttl from
        now. Returns the pending job that had it until now, for the caller to remove; an active
        one keeps running without it."""
        prior = self.owners.get(key_of(record))
        if prior is not None:
            self._leaves(prior)
        self.take_new(record, now)
        if prior is None or prior is record or not stands(prior, now):
            return None
        if prior.state < ACTIVE:
            # its claim stands: should an exception land before its removal, the rebuild finds two
            # that claim the key, and removes it
            return prior
        _lose(prior)
        return None

    def take_new(self, record: JobRecord, now: int) -> None:
        """`take` where the caller has seen that `owners` does not have the key."""
        begin(record, now)
        self.owners[key_of(record)] = record
        if is_held(record.claim):
            self._hold(record, now)

    def hold_for(self, record: JobRecord) -> None:
        """Gives a key that is held by time back to a job that has ended, as it was before a
        restart."""
        self.owners[key_of(record)] = record
        self.numbers += 1
        heappush(self.held, (_until(record), self.numbers, record))

    def free(self, record: JobRecord) -> None:
        """The record has ended: its key is free, unless that is held by ttl or has moved on."""
        key = key_of(record)
        if not is_held(record.claim) and self.owners.get(key) is record:
            del self.owners[key]

    def release(self, key: str, now: int) -> bool:
        """Frees the key, whoever owns it; says whether it was taken."""
        owner = self.owners.get(key)
        if owner is None:
            return False
        taken = stands(owner, now)
        self._leaves(owner)
        # first: a claim that no longer stands does not get its key back in a rebuild
        _lose(owner)
        del self.owners[key]
        return taken

    def let_expired_go(self, now: int, limit: int) -> int:
        """Frees up to `limit` keys that are held by time and whose time has passed; returns how
        many were looked at."""
        looked = 0
        while self.held and self.held[0][0] <= now and looked < limit:
            self._let_go(now)
            looked += 1
        return looked

    def next_ms(self) -> int | None:
        """A moment no later than that at which the next held key goes; `None` if none is held."""
        return self.held[0][0] if self.held else None

    def rebuild(self, records: Iterable[JobRecord], now: int) -> list[JobRecord]:
        """Makes the table anew from the live among the records, which come in the order of their
        admission, and from the held keys whose jobs have ended. Returns the pending jobs that
        were being replaced by a newer one when the section broke off, for the caller to
        remove."""
        owners = {
            key: record
            for key, record in self.owners.items()
            if record.state > ACTIVE and is_held(record.claim) and stands(record, now)
        }
        replaced = []
        for record in records:
            key, claim = record.unique_key, record.claim
            if record.state > ACTIVE or key is None or not stands(record, now):
                continue
            if isinstance(claim, Claim) and claim.until_ms is None:
                # admitted, but its ttl, if it has one, had not begun
                claim.begin(now)
            prior = owners.get(key)
            owners[key] = record
            if prior is None:
                continue
            if prior.state < ACTIVE:
                replaced.append(prior)
            else:
                _lose(prior)
        for key, record in self.owners.items():
            if owners.get(key) is not record:
                self._leaves(record)
        self.owners = owners
        self._sweep()
        return replaced

    def gone(self) -> list[JobRecord]:
        """The records of jobs that are gone and have a key still. O(keys)."""
        return [record for record in self.owners.values() if record.state == REMOVED]

    def _leaves(self, owner: JobRecord) -> None:
        """The owner's key is about to leave it."""
        if self.freed is not None and owner.state == REMOVED:
            self.freed(key_of(owner))

    def _hold(self, record: JobRecord, now: int) -> None:
        until = _until(record)
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
        key = key_of(record)
        if self.owners.get(key) is record:
            if stands(record, now):
                heappush(self.held, (_until(record), number, record))
            else:
                self._leaves(record)
                del self.owners[key]
        heappop(self.held)

    def _sweep(self) -> None:
        held: list[HeldEntry] = []
        for record in self.owners.values():
            if is_held(record.claim):
                held.append((_until(record), len(held), record))
        heapify(held)
        self.numbers = len(held)
        self.held = held

    def check(self) -> None:
        """Asserts its invariants."""
        waiting_to_go = {id(record) for _, _, record in self.held}
        for key, record in self.owners.items():
            assert record.unique_key == key, "a key under another name"
            claim = record.claim
            if isinstance(claim, Claim):
                assert claim.until_ms != LOST, "an owner that lost its key"
                assert (claim.until_ms is None) == (claim.ttl_ms is None), "a ttl that never began"
            if is_held(claim):
                assert id(record) in waiting_to_go, "a held key that would never go"
            else:
                assert record.state <= ACTIVE, "a key outlives its job"
        heap = self.held
        assert all(heap[(i - 1) >> 1][:2] <= e[:2] for i, e in enumerate(heap) if i), "heap order"
        assert len(heap) <= 2 * len(self.owners) + SWEEP_AT + 2, "stale held keys pile up"

    def check_complete(self, records: Iterable[JobRecord], now: int) -> None:
        """Asserts that every live one of the records whose claim stands has its key."""
        for record in records:
            key = record.unique_key
            if record.state <= ACTIVE and key is not None and stands(record, now):
                assert self.owners.get(key) is record, "a live job without its key"


def key_of(record: JobRecord) -> str:
    """The record's key; the caller knows that it has one."""
    assert record.unique_key is not None
    return record.unique_key


def stands(record: JobRecord, now: int) -> bool:
    """Whether the record's claim has neither expired nor been lost to another job."""
    claim = record.claim
    if claim is None:
        return True
    if isinstance(claim, int):
        return record.created_ms + claim > now
    return claim.until_ms is None or claim.until_ms > now


def begin(record: JobRecord, now: int) -> None:
    """The ttl of the record's claim, if it has one, counts from now on."""
    claim = record.claim
    if isinstance(claim, Claim):
        claim.begin(now)
    elif claim is not None and now != record.created_ms:
        record.claim = Claim(claim, until_ms=now + claim)


def _lose(record: JobRecord) -> None:
    """The record's claim no longer stands."""
    claim = record.claim
    if isinstance(claim, Claim):
        claim.until_ms = LOST
    else:
        record.claim = Claim(claim, until_ms=LOST)


def _extend(record: JobRecord, ttl_ms: int | None, now: int) -> None:
    """Counts the ttl anew from now: the caller's, else its own. Never makes it end earlier."""
    claim = record.claim
    if claim is None:
        return
    if isinstance(claim, int):
        claim = record.claim = Claim(claim, until_ms=record.created_ms + claim)
    if ttl_ms is None:
        ttl_ms = claim.ttl_ms
    if ttl_ms is not None and claim.until_ms is not None:
        claim.until_ms = max(claim.until_ms, now + ttl_ms)


def _until(record: JobRecord) -> int:
    """When the record's held key goes; every held one has a ttl."""
    claim = record.claim
    assert isinstance(claim, Claim)
    assert claim.until_ms is not None
    return claim.until_ms


def key_conflict(queue: QueueState, record: JobRecord, now: int) -> str | None:
    """The id of another live job that owns the record's key, so that the record must not come
    back to life; `None` if nothing is in its way."""
    if record.unique_key is None:
        return None
    owner = queue.unique_keys.owner(record.unique_key, now)
    if owner is None or owner is record or owner.state > ACTIVE:
        return None
    return owner.id
