"""What every test gets: locks that check their order, no leaked thread, a size for slow suites."""

import os
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

# The package decides at import which locks it makes, so this stands before its first import.
if "bunqueue_py" in sys.modules:
    raise RuntimeError("bunqueue_py was imported before tests/conftest.py could turn its checks on")
os.environ["BUNQUEUE_CHECK_LOCKS"] = "1"
os.environ.pop("BUNQUEUE_DATA_PATH", None)  # or the default manager would open someone's file

SLOW = os.environ.get("BUNQUEUE_SLOW", "long")
if SLOW not in ("short", "long"):
    raise RuntimeError(f"BUNQUEUE_SLOW is {SLOW!r}; it may be 'short' or 'long'")

# `pytest --hypothesis-profile=...` has the last word. Never derandomized: each run looks elsewhere,
# and a failure prints the blob that brings it back.
settings.register_profile("dev", deadline=None, derandomize=False, print_blob=True)
settings.register_profile(
    "ci",
    settings.get_profile("dev"),
    database=None,  # a fresh clone has none to replay
    suppress_health_check=[HealthCheck.too_slow],  # says more about the machine than about a test
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

JOIN_GRACE = 2.0


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    """Fails the test after which a thread of ours is still alive, two seconds later."""
    before = set(threading.enumerate())
    yield
    ours = [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("bunqueue-") and thread not in before
    ]
    for thread in ours:
        thread.join(JOIN_GRACE / len(ours))
    leaked = sorted(thread.name for thread in ours if thread.is_alive())
    if leaked:
        pytest.fail(f"leaked {len(leaked)} thread(s): {', '.join(leaked)}", pytrace=False)


@pytest.fixture(scope="session")
def slow_rounds() -> Callable[[int, int], int]:
    """`slow_rounds(short, long)`: how many rounds a slow test does, by BUNQUEUE_SLOW."""

    def pick(short: int, long: int) -> int:
        return short if SLOW == "short" else long

    return pick
