"""What is kept of ended jobs can be read at every moment while it moves."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from bunqueue_py.stores.results import Proof, ProofStore, ResultStore


class Watched:
    """A lock after each release of which somebody looks."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._look = look
        self._looking = False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
        if not self._looking:
            self._looking = True
            self._look()
            self._looking = False


def watch(store: Any, look: Callable[[], None]) -> None:
    store._lock = Watched(look)


def test_a_result_is_there_while_it_is_pinned_and_let_go() -> None:
    store = ResultStore(10, 1_000)
    store.put("a", b"one")
    seen: list[bytes | None] = []
    watch(store, lambda: seen.append(store.get("a")))
    store.pin("a")
    store.unpin("a")
    assert seen == [b"one"] * len(seen)
    assert len(seen) >= 2
    assert (store.size, len(store), store.pinned) == (3, 1, {})


def test_a_result_that_is_let_go_takes_the_place_of_one_of_its_name_and_makes_room() -> None:
    store = ResultStore(2, 1_000)
    store.pin("a", b"pinned")
    for name in ("a", "b", "c"):
        store.put(name, b"123")
    store.unpin("a")
    assert store.get("a") == b"pinned"
    assert store.get("b") is None
    assert (len(store), store.size) == (2, 9)


def test_a_proof_is_there_while_it_is_let_go() -> None:
    store = ProofStore()
    proof = Proof("q", 1, False, None)
    store.pin("a", proof)
    seen: list[Proof | None] = []
    watch(store, lambda: seen.append(store.get("a")))
    store.unpin("a")
    assert seen == [proof] * len(seen)
    assert len(seen) >= 2
    assert not store.pinned
