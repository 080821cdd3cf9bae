"""Fixtures for pytest, for who asks for them: put
`pytest_plugins = ["bunqueue_py.testing.pytest_plugin"]` into the `conftest.py` at the root.

Each test gets a harness of its own, on memory or on a file in its own `tmp_path`; nothing is shared
between tests or between the processes of pytest-xdist.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .harness import Harness

_GRACE = 1.0
"""How many seconds a thread that is about to end may take."""


@pytest.fixture
def bunqueue() -> Iterator[Harness]:
    """A `Harness` on memory. Fails the test after which a thread of bunqueue_py is left."""
    with no_thread_left(), Harness() as harness:
        yield harness


@pytest.fixture
def bunqueue_sqlite(tmp_path: Path) -> Iterator[Harness]:
    """A `Harness` on the file `jobs.db` in `tmp_path`. Fails the test after which a thread of
    bunqueue_py is left."""
    with no_thread_left(), Harness(tmp_path / "jobs.db") as harness:
        yield harness


@contextmanager
def no_thread_left(grace: float = _GRACE) -> Iterator[None]:
    """Fails the test if a thread of bunqueue_py that its block has started is alive `grace`
    seconds after it."""
    before = set(threading.enumerate())
    yield
    ours = [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("bunqueue-") and thread not in before
    ]
    for thread in ours:
        thread.join(grace / len(ours))
    left = sorted(thread.name for thread in ours if thread.is_alive())
    if left:
        pytest.fail(
            f"the test leaves {len(left)} thread(s) of bunqueue_py running: {', '.join(left)}. "
            "Close what it started, QueueManager or Worker, or use the fixture's own manager",
            pytrace=False,
        )
