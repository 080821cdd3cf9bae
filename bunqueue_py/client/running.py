"""`Worker.run`: signals become a close, and the main thread waits for it."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ..errors import BunqueueError
from ..sync import on_main_thread, spawn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ENDED = 0
"""The byte that says so; that of a signal is its number."""


def run_until_closed(
    name: str,
    start: Callable[[], object],
    close: Callable[..., bool],
    when_ended: Callable[[Callable[[], None]], None],
) -> None:
    """Starts the worker and blocks until it has ended. The first signal calls `close()`, on a
    thread of its own, the second `close(force=True)`, after which nothing more is waited for."""
    # the interpreter itself writes the number of a signal into it at once. A wait for a lock would
    # miss one that comes between the last look and the wait: the goodbye matrix noticed
    bell, rope = socket.socketpair()
    rope.setblocking(False)
    signals = 0

    def ended() -> None:
        # full is as good as rung, and closed means that nobody waits any more
        with contextlib.suppress(OSError):
            rope.send(bytes((_ENDED,)))

    # before the start: the first handler may be what a signal comes from
    with bell, rope, _installed(rope):
        start()
        when_ended(ended)
        while True:
            for news in bell.recv(256):
                if news == _ENDED:
                    return
                if news not in SIGNALS:
                    continue
                signals += 1
                if signals == 1:
                    spawn(f"{name}-closer", lambda: _close(close, ended))
                else:
                    close(force=True)
                    return


@contextlib.contextmanager
def _installed(rope: socket.socket) -> Iterator[None]:
    """Has signals written into it, on the main thread; puts back what was there before."""
    if not on_main_thread():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        """It is there so that nothing else happens."""

    # what was installed from outside Python (None) could not be put back
    before: dict[int, Any] = {}
    other = signal.set_wakeup_fd(rope.fileno(), warn_on_full_buffer=False)
    try:
        for number in SIGNALS:
            if signal.getsignal(number) is not None:
                before[number] = signal.signal(number, note)
        yield
    finally:
        for installed, handler in before.items():
            signal.signal(installed, handler)
        signal.set_wakeup_fd(other)


def _close(close: Callable[..., bool], ended: Callable[[], None]) -> None:
    try:
        close()
    except BunqueueError:
        pass  # the manager is closed, and has closed the worker
    finally:
        # also where a handler did not return: its thread alone would have said so
        ended()
