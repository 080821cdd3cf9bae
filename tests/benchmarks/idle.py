"""What an idle manager with 20 idle worker threads costs.

Units: milliseconds of CPU time a second, and voluntary context switches a
second (each one is a thread that woke up for something), in a fresh
interpreter after one job and a pause. "No measurable CPU" is read as under
one millisecond a second, a thousandth of a core.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import threading
import time
from pathlib import Path
from time import perf_counter

from harness import PAYLOAD, Row, Settings, each_round, in_child

from bunqueue_py import Job, Queue, QueueManager, Worker

THREADS = 20
SETTLE_S = 0.5


def child(window: float) -> dict[str, float]:
    """CPU and switches a second over a window of so many seconds."""
    resource = importlib.import_module("resource")
    ran = threading.Event()

    def handler(job: Job) -> None:
        ran.set()

    with QueueManager() as manager:
        queue = Queue("q", manager)
        with Worker(queue, handler, concurrency=THREADS):
            queue.add("job", PAYLOAD)
            assert ran.wait(30)
            time.sleep(SETTLE_S)
            start, cpu = perf_counter(), time.process_time()
            switches = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
            time.sleep(window)
            cpu = time.process_time() - cpu
            switches = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - switches
            elapsed = perf_counter() - start
    return {"cpu": cpu * 1_000 / elapsed, "switches": switches / elapsed}


def measure(settings: Settings) -> list[Row]:
    """Two rows: CPU time and context switches."""
    if importlib.util.find_spec("resource") is None:
        print("no module resource on this system: idle skipped")
        return []
    window = settings.size(quick=2, full=5)
    found = each_round("idle", settings, lambda: in_child(Path(__file__).name, window))
    note = f"{THREADS} worker threads, {window} s"
    return [
        Row("idle, CPU", "ms/s", found["cpu"], floor=1.0, note=note),
        Row("idle, voluntary switches", "1/s", found["switches"], note=note),
    ]


if __name__ == "__main__":
    print(json.dumps(child(float(sys.argv[1]))))
