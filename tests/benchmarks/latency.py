"""From `queue.add` to the first line of the handler, the worker being asleep.

Unit: milliseconds. The clock is read just before `add` and as the handler's
first act. Each sample waits for its job to be done, then long enough for the
worker's one thread to fall asleep again. The bare lines hand one lock from
thread to thread with the same pauses: what the machine takes for a wake-up.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from time import perf_counter

from harness import PAYLOAD, Row, Settings, each_round, percentile

from bunqueue_py import Job, Queue, QueueManager, Worker

WARM_UP = 20
PATIENCE_S = 30
GAPS_S = (0.002, 0.005)

Send = Callable[[], None]


class Arrival:
    """When the other side was reached, and that it was."""

    def __init__(self) -> None:
        self.at = 0.0
        self.done = threading.Event()


def sample(send: Send, arrival: Arrival, count: int, dice: Random) -> list[float]:
    """Milliseconds from `send` to the arrival, `count` times."""
    taken = []
    for _ in range(count):
        arrival.done.clear()
        sent = perf_counter()
        send()
        if not arrival.done.wait(PATIENCE_S):
            raise TimeoutError("a job did not reach its handler")
        taken.append((arrival.at - sent) * 1_000)
        time.sleep(dice.uniform(*GAPS_S))
    return taken


@contextmanager
def idle_worker(arrival: Arrival) -> Iterator[Send]:
    """A way to send a job to a worker of one thread, which waits for it."""

    def handler(job: Job) -> None:
        now = perf_counter()
        arrival.at = now
        arrival.done.set()

    with QueueManager() as manager:
        queue = Queue("q", manager)
        with Worker(queue, handler):
            yield lambda: void(queue.add("job", PAYLOAD))


@contextmanager
def bare_thread(arrival: Arrival) -> Iterator[Send]:
    """A way to wake a thread that waits for a lock."""
    baton = threading.Lock()
    baton.acquire()
    stopped = False

    def loop() -> None:
        while True:
            baton.acquire()
            now = perf_counter()
            if stopped:
                return
            arrival.at = now
            arrival.done.set()

    thread = threading.Thread(target=loop, name="bare", daemon=True)
    thread.start()
    yield baton.release
    stopped = True
    baton.release()
    thread.join()


def void(_: object) -> None:
    """Drop a value."""


def measure(settings: Settings) -> list[Row]:
    """Four rows: median and 99th percentile, of the worker and of a bare thread."""
    count = settings.size(quick=300, full=1_000)
    dice = Random(7)

    def one_round() -> dict[str, float]:
        values = {}
        for kind, opened, share in (("add", idle_worker, 1), ("bare", bare_thread, 3)):
            arrival = Arrival()
            with opened(arrival) as send:
                sample(send, arrival, WARM_UP, dice)
                taken = sample(send, arrival, count // share, dice)
            values[f"{kind} median"] = statistics.median(taken)
            values[f"{kind} p99"] = percentile(taken, 99)
        return values

    found = each_round("latency", settings, one_round)
    note = f"{count} samples a round"
    return [
        Row("add to handler, median", "ms", found["add median"], floor=0.3, aim=0.15, note=note),
        Row("add to handler, p99", "ms", found["add p99"], floor=3, aim=0.6, note=note),
        Row("bare thread wake-up, median", "ms", found["bare median"], note="the machine's share"),
        Row("bare thread wake-up, p99", "ms", found["bare p99"], note="the machine's share"),
    ]
