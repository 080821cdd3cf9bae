"""The unit that cycles are measured in: a thread-safe queue plus the encoding.

One yardstick is `queue.PriorityQueue` put and get of one entry and
`json.dumps` and `json.loads` of the small payload: the least that any job queue
in one process has to do for one job.
"""

from __future__ import annotations

import json
from queue import PriorityQueue
from time import perf_counter

from harness import PAYLOAD


def yardstick(jobs: int) -> float:
    """Seconds for one yardstick, over `jobs` of them one after the other."""
    queue: PriorityQueue[tuple[int, int, str]] = PriorityQueue()
    start = perf_counter()
    for sequence in range(jobs):
        queue.put((0, sequence, json.dumps(PAYLOAD)))
        json.loads(queue.get()[2])
    return (perf_counter() - start) / jobs
