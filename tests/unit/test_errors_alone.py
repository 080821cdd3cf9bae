"""An error of a caller's comes alone: no failed lookup of ours is shown as what led to it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator

import pytest

from bunqueue_py import BunqueueError, QueueManager
from bunqueue_py.testing import VirtualClock

Call = Callable[[QueueManager], object]


@pytest.fixture
def manager() -> Iterator[QueueManager]:
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        yield manager


BAD: dict[str, Call] = {
    "a queue of push": lambda manager: manager.push("no queue", 1),
    "a queue of push, with an id": lambda manager: manager.push("no queue", 1, custom_id="i"),
    "a queue of a batch": lambda manager: manager.push_batch("no queue", [("x", 1)]),
    "a queue of pull": lambda manager: manager.pull("no queue"),
    "a queue of a batch that is pulled": lambda manager: manager.pull_batch("no queue", 2),
    "a queue that is no text": lambda manager: manager.pull([]),
    "a job's name": lambda manager: manager.push("q", 1, name=""),
    "a job's name that cannot be hashed": lambda manager: manager.push("q", 1, name=[]),  # type: ignore[arg-type]
    "a job's name in a batch": lambda manager: manager.push_batch("q", [("\0", 1)]),
    "a custom id": lambda manager: manager.push("q", 1, custom_id=""),
    "a token": lambda manager: manager.ack(manager.push("q", 1), token="x"),
}


def shown(call: Call, manager: QueueManager) -> str:
    with pytest.raises(BunqueueError) as raised:
        call(manager)
    return "".join(traceback.format_exception(None, raised.value, None))


@pytest.mark.parametrize("call", BAD.values(), ids=BAD)
def test_bad_input_is_refused_with_one_error(call: Call, manager: QueueManager) -> None:
    assert "KeyError" not in shown(call, manager)
    assert "During handling" not in shown(call, manager)


@pytest.mark.parametrize(
    "call",
    [
        lambda manager: manager.push("new", 1),
        lambda manager: manager.pull("new"),
        lambda manager: manager.pull_batch("new", 1),
        lambda manager: manager.ack("nobody", token="x"),
    ],
    ids=["push", "pull", "pull_batch", "ack"],
)
def test_a_closed_manager_refuses_with_one_error(call: Call, manager: QueueManager) -> None:
    manager.close()
    assert "KeyError" not in shown(call, manager)
