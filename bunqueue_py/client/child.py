"""A process of a worker, as the parent holds it."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.util  # its farewell at exit is registered now, and those of crews come first
import os
import socket
from multiprocessing.connection import Connection
from typing import Any

from ..sync import CONNECTION, make_lock
from .process_child import Orders, main
from .wire import Message, has_room, receive, send

KILL_S = 5.0
"""How long a process that was killed may take to be gone."""
TELL_S = 0.1
"""How long others may be sending to a process before it is not told of a cancellation."""
_LEAVE_S = 1.0
"""How long one that was dismissed may take before it is killed."""


class Child:
    """One process, as the parent holds it. `doomed` is why it was killed, or is about to be."""

    def __init__(self, name: str, orders: Orders) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe: Connection
        self._pipe, theirs = context.Pipe()
        self._lock = make_lock("pipe to a child", CONNECTION)
        self.doomed: str | None = None
        self.is_ready = False
        self.runs = 0
        self.wears_out = False
        #: of its last runs that failed: whether the handler had returned
        self.work_done = False
        # not a daemon in the sense of multiprocessing, which could have no processes of its own
        self._process = context.Process(target=main, args=(theirs, orders), name=name, daemon=False)
        try:
            self._process.start()
        except BaseException:
            self._pipe.close()
            raise
        finally:
            # so that its end is seen here
            theirs.close()

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        try:
            return self._process.is_alive()
        except ValueError:  # buried
            return False

    @property
    def exit_code(self) -> int | None:
        """How it ended; `None` while it runs."""
        self._process.join(_LEAVE_S)
        return self._process.exitcode

    def send(self, kind: str, values: list[Any], blob: bytes = b"") -> bool:
        """Tells it; False if it is gone, as the next `receive` shows too."""
        try:
            with self._lock:
                send(self._pipe, kind, values, blob)
        except (OSError, ValueError):
            return False
        return True

    def tell(self, kind: str, values: list[Any]) -> None:
        """The same, but waits for nobody: what does not read what it was sent before (it stands
        still, or is being sent a lot) is not told."""
        if not self._lock.acquire(timeout=TELL_S):
            return
        try:
            if has_room(self._pipe):
                send(self._pipe, kind, values)
        except (OSError, ValueError):
            pass
        finally:
            self._lock.release()

    def receive(self) -> Message:
        """What it says next; raises `EOFError` when it has died."""
        try:
            return receive(self._pipe)
        except OSError as error:
            raise EOFError from error

    def hang_up(self) -> None:
        """Ends the pipe for whoever waits for what it says: it is gone, and a process that it has
        forked still holds the other end."""
        try:
            with socket.socket(fileno=os.dup(self._pipe.fileno())) as end:
                end.shutdown(socket.SHUT_RDWR)
        except (OSError, ValueError):
            pass  # buried already

    def kill(self, why: str) -> None:
        """Ends it at once."""
        if self.doomed is None:
            self.doomed = why
        # its own thread may be burying it
        with contextlib.suppress(ValueError):
            self._process.kill()

    def bury(self) -> None:
        """It has died, or is killed: leaves nothing of it behind."""
        self._process.kill()
        self._process.join(KILL_S)
        with self._lock:
            self._pipe.close()
        if self._process.exitcode is not None:
            self._process.close()

    def dismiss(self) -> None:
        """Ends it in good order, between two jobs."""
        self.send("stop", [])
        self._process.join(_LEAVE_S)
        self.bury()
