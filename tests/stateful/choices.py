"""What the rules of the machine choose from."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from bunqueue_py import ANY, Backoff, Deduplication, KeepJobs

QUEUES = ("red", "blue")
"""In two shards."""

GROUPS = ("a", "b", "c")
REASONS = ("max_attempts_exceeded", "unrecoverable", "stalled", "timeout", "ttl_expired")
_KEYS = [
    Deduplication(key, ttl, mode, hold)  # type: ignore[arg-type]
    for key in ("k", "l")
    for mode in ("skip", "extend", "replace")
    for hold, ttl in (("live", None), ("live", 6), ("ttl", 6), ("ttl", 100))
]
_KEEPS = [True, KeepJobs(count=1), KeepJobs(age=9), KeepJobs(count=2, age=4), KeepJobs(count=0)]
_VALUES: dict[str, list[Any]] = {
    "priority": [5, 1, -3],
    "lifo": [True],
    "delay": [0.007, 5, 40],
    "run_at": [-5, 3, 60],
    "ttl": [2, 45],
    "timeout": [1, 20],
    "attempts": [1, 2, 4],
    "backoff": [
        Backoff.fixed(1, jitter=0),
        Backoff.fixed(0),
        Backoff.fixed(3, jitter=0.4),
        Backoff.exponential(2, max_delay=7, jitter=0),
        0.25,
    ],
    "group": list(GROUPS),
    "group_limit": [1, 3],
    "custom_id": ["x", "y"],
    "deduplication": _KEYS,
    "remove_on_complete": _KEEPS,
    "remove_on_fail": _KEEPS,
    "durable": [True],
    "stall_timeout": [7],
    "tags": [("mail", "eu")],
    "stack_trace_limit": [0],
}
_WEIGHT = {"group": 4, "priority": 2, "custom_id": 4, "attempts": 2, "ttl": 2, "timeout": 2}
_NAMES = [name for name in _VALUES for _ in range(_WEIGHT.get(name, 1))]


def options_of(chosen: list[tuple[str, Any]]) -> dict[str, Any]:
    """The options as one dictionary, without what does not go together."""
    options = dict(chosen)
    if "run_at" in options:
        options.pop("delay", None)
    if "group_limit" in options:
        options.setdefault("group", GROUPS[0])
    return options


Chosen = list[tuple[str, Any]]
OPTIONS = st.lists(
    st.sampled_from([(name, value) for name in _NAMES for value in _VALUES[name]]), max_size=4
)
"""The options of a job, by name and value; `run_at` in seconds from now by the wall clock."""

QUEUE = st.sampled_from(QUEUES)
GROUP = st.sampled_from(GROUPS)
GROUP_CHOICE = st.sampled_from([ANY, ANY, ANY, ANY, None, "a", "b"])
PICK = st.integers(0, 40)
"""Which of those there are."""

HOW = st.sampled_from(["stale", "stale", "stale", "missing", "foreign"])
"""Whose token is shown, if not that of the run under way."""

LOCKS = st.sampled_from([30, 30, 3, 100, None])
OWNER = st.sampled_from([None, None, "w1", "w2"])
RESULT = st.sampled_from([None, 1, "done"])
LIMIT = st.sampled_from([None, 0, 1, 3])
PRIORITY = st.sampled_from([-3, 0, 1, 8])
DELAY = st.sampled_from([0, 0.004, 3, 60])
DIE = st.sampled_from([0.0, 0.5, 0.99])
FILTER = st.sampled_from(
    [
        {},
        {},
        {"retriable": True},
        {"retriable": False},
        {"older_than": 5},
        {"newer_than": 5},
        *({"reason": reason} for reason in REASONS),
    ]
)
