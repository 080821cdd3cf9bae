"""`Worker.run`: signals become a close, and the main thread waits for it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType
from typing import Any

from ..errors import BunqueueError
from ..sync import on_main_thread, spawn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ENDED = "ended"


def run_until_closed(
    name: str,
    start: Callable[[], object],
    close: Callable[..., bool],
    when_ended: Callable[[Callable[[], None]], None],
) -> None:
    """Starts the worker and blocks until it has ended. The first signal calls `close()`, on a
    thread of its own, the second `close(force=True)`, after which nothing more is waited for."""
    # a signal handler may interrupt anything, and does nothing but put: SimpleQueue allows that
    news: SimpleQueue[str] = SimpleQueue()
    signals = 0
    # before the start: the first handler may be what a signal comes from
    before = _install(news) if on_main_thread() else {}
    try:
        start()
        when_ended(lambda: news.put(_ENDED))
        while news.get() != _ENDED:
            signals += 1
            if signals == 1:
                spawn(f"{name}-closer", lambda: _close(close, news))
            else:
                close(force=True)
                return
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _install(news: SimpleQueue[str]) -> dict[int, Any]:
    def note(number: int, frame: FrameType | None) -> None:
        news.put(signal.Signals(number).name)

    # what was installed from outside Python (None) could not be put back
    return {n: signal.signal(n, note) for n in SIGNALS if signal.getsignal(n) is not None}


def _close(close: Callable[..., bool], news: SimpleQueue[str]) -> None:
    try:
        close()
    except BunqueueError:
        pass  # the manager is closed, and has closed the worker
    finally:
        # also where a handler did not return: its thread alone would have said so
        news.put(_ENDED)
