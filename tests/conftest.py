"""What every test gets: locks that check their order, no leaked thread, a size for slow suites."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

# The package decides at import which locks it makes, so this stands before its first import.
if "bunqueue_py" in sys.modules:
    raise RuntimeError("bunqueue_py was imported before tests/conftest.py could turn its checks on")
os.environ["BUNQUEUE_CHECK_LOCKS"] = "1"
os.environ.pop("BUNQUEUE_DATA_PATH", None)  # or the default manager would open someone's file

# Tests start hundreds of interpreters. Where these may not write beside the sources what they have
# compiled, each would compile the whole package anew, which is half of the time they take.
COMPILED = None
if sys.dont_write_bytecode and "PYTHONPYCACHEPREFIX" not in os.environ:
    COMPILED = sys.pycache_prefix = tempfile.mkdtemp(prefix="bunqueue-compiled-")
    os.environ["PYTHONPYCACHEPREFIX"] = COMPILED
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False

SLOW = os.environ.get("BUNQUEUE_SLOW", "long")
if SLOW not in ("short", "long"):
    raise RuntimeError(f"BUNQUEUE_SLOW is {SLOW!r}; it may be 'short' or 'long'")

# `pytest --hypothesis-profile=search` looks elsewhere in each run, and a failure prints the blob
# that brings it back; so does the slow part in its long form. Otherwise the examples are the same
# each time: whether a change may land is not left to chance.
settings.register_profile("search", deadline=None, print_blob=True)
settings.register_profile(
    "fixed",
    settings.get_profile("search"),
    derandomize=True,
    max_examples=30,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],  # says more about the machine than about a test
)
settings.load_profile("fixed")

from bunqueue_py.testing.pytest_plugin import no_thread_left  # noqa: E402 - after the switches
from tests.faulty_disk import Disk  # noqa: E402 - the same

JOIN_GRACE = 2.0


def pytest_configure(config: pytest.Config) -> None:
    """Picks Hypothesis' profile, before a test module has made its settings."""
    if config.option.markexpr == "slow" and SLOW == "long":
        settings.load_profile(config.getoption("--hypothesis-profile") or "search")


def pytest_unconfigure() -> None:
    if COMPILED is not None:
        shutil.rmtree(COMPILED, ignore_errors=True)


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    """Fails the test after which a thread of ours is still alive, two seconds later."""
    with no_thread_left(JOIN_GRACE):
        yield


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """A disk that fails when it is told to, and is well again at the end."""
    disk = Disk(monkeypatch)
    yield disk
    disk.mend()
    disk.gate.set()


@pytest.fixture(scope="session")
def slow_rounds() -> Callable[[int, int], int]:
    """`slow_rounds(short, long)`: how many rounds a slow test does, by BUNQUEUE_SLOW."""

    def pick(short: int, long: int) -> int:
        return short if SLOW == "short" else long

    return pick
