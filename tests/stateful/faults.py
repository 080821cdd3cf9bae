"""The seeded faults: what is made wrong, where, and who should notice."""

from __future__ import annotations

from tests.stateful.mutation import MEMORY, Mutation
from tests.stateful.schedule_faults import SCHEDULE_MUTATIONS

SQLITE = ("SqliteMachine 60 40",)
UNLIKE = (
    "tests/unit/test_recovery.py"
    "::test_one_job_unlike_the_others_takes_its_turn_after_a_kill_as_before"
)
FLOWS = "tests/unit/test_flows.py"


MUTATIONS = (
    Mutation(
        "capacity returned twice",
        "shard/groups.py",
        r"group\.active -= 1",
        "group.active -= 2",
    ),
    Mutation(
        "concurrency off by one",
        "shard/limiter.py",
        r"max\(0, bound - active\)",
        "max(0, bound - active + 1)",
    ),
    Mutation(
        "key freed in back-off",
        "ops/fail.py",
        r'(record\.requeue\(verdict\.retry_at_ms, now, "retrying".*\))',
        r"\1; record.unique_key and queue.unique_keys.free(record)",
    ),
    Mutation(
        "token not checked",
        "ops/ack.py",
        r"token == delivery\.token or \(token is None",
        "token is not None or (token is None",
    ),
    Mutation(
        "a job twice in a batch is completed twice",
        "ops/bulk.py",
        r" or job_id in ending",
        "",
        ("tests/unit/test_batches_alike.py",),
    ),
    Mutation(
        "one that must run alone waits in a batch",
        "ops/bulk.py",
        r"if record\.options\.runs_alone:",
        "if False:",
        ("tests/unit/test_batches_alike.py",),
    ),
    Mutation(
        "a late ack refused after a sweep",
        "model/job.py",
        r"\(self\.delivery\.token, by_sweep\)",
        "(self.delivery.token, False)",
    ),
    Mutation(
        "FIFO tie broken",
        "shard/keys.py",
        r"record\.run_at_ms << SEQ_BITS \| seq\b",
        "record.run_at_ms << SEQ_BITS | seq ^ 1",
    ),
    Mutation(
        "LIFO oldest first",
        "shard/keys.py",
        r"return place \| \(LIMIT - 1 - seq\)",
        "return place | seq",
    ),
    Mutation(
        "expired job delivered",
        "ops/pull.py",
        r"while record is not None and is_expired\(record, now\)",
        "while record is None and is_expired(record, now)",
    ),
    Mutation(
        "attempt of a lost lock not charged as a stall",
        "ops/stalls.py",
        r"wait_ms, now, by_sweep=True\)",
        "wait_ms, now)",
    ),
    Mutation(
        "heartbeat without effect",
        "ops/leases.py",
        r"delivery\.expires_ms = state\.now\(\) \+ delivery\.lease_ms",
        "state.now()",
    ),
    Mutation(
        "round robin not advanced",
        "shard/groups.py",
        r"_, group = self\.line\.popitem\(last=False\)",
        "group = next(iter(self.line.values()))",
    ),
    Mutation(
        "group pause ignored",
        "shard/groups.py",
        r"group\.paused(?=:\n            return False| and self\._room)",
        "False",
    ),
    Mutation(
        "rate window off by one",
        "model/window.py",
        r"return self\.max - len\(starts\)",
        "return self.max - len(starts) + 1",
    ),
    Mutation(
        "rate window a millisecond short",
        "model/window.py",
        r"while starts and starts\[0\] \+ self\.per_ms <= now",
        "while starts and starts[0] + self.per_ms <= now + 1",
    ),
    Mutation(
        "back-off one step ahead",
        "model/backoff.py",
        r"wait <<= min\(retry - 1, 48\)",
        "wait <<= min(retry, 48)",
    ),
    Mutation(
        "held key freed with its job",
        "shard/unique_keys.py",
        r"if not is_held\(record\.claim\) and self\.owners\.get\(key\) is record",
        "if self.owners.get(key) is record",
    ),
    Mutation(
        "custom id of a finished job not retired",
        "ops/*.py",
        r"if holder is not None(:\n        forget\(state, queue, holder, remember=True\))",
        r"if holder is None and record is None\1",
    ),
    Mutation(
        "an effect applied twice: stalls",
        "model/job.py",
        r"side\.stall_count \+= by_sweep",
        "side.stall_count += 2 * by_sweep",
    ),
    Mutation(
        "an effect applied twice: retries of a dead letter",
        "model/job.py",
        r"side\.dlq_retries \+= failed",
        "side.dlq_retries += 2 * failed",
    ),
    Mutation(
        "a dead letter retried though its key is taken",
        "ops/revival.py",
        r"if other is not None:\n        return f",
        "if other is None and other:\n        return f",
    ),
    Mutation(
        "an automatic retry forgets how often",
        "shard/dead_letters.py",
        r"settings\.retry_interval_ms << min\(letter\.auto_retries, 48\)",
        "settings.retry_interval_ms << 0",
        # a machine comes to a second automatic retry of one job now and then only
        (
            *MEMORY,
            "tests/unit/test_dead_letters_in_time.py"
            "::test_automatic_retries_come_at_doubling_intervals_and_carry_the_entry_on",
        ),
    ),
    Mutation(
        "a tombstone lost",
        "ops/mark.py",
        r"dirty\.tombstone\(record\.id, data_size, data_size if whole else record\.result_size\)",
        "dirty.jobs.pop(record.id, None)",
        SQLITE,
    ),
    Mutation(
        "a job that changed otherwise too is taken to have only ended",
        "ops/mark.py",
        r"if known is _UNKNOWN:",
        "if True:",
        (
            "tests/unit/test_dirty.py"
            "::test_a_job_that_changed_in_another_way_since_the_cut_has_not_only_ended",
        ),
    ),
    Mutation(
        "the place of a job that had waited for others is not written with its end",
        "storage/sqlite/packed.py",
        r"place = f\"seq=.*\"",
        'place = ""',
        (
            "tests/property/test_sqlite_packed.py"
            "::test_the_end_of_tied_jobs_tells_of_the_place_that_they_came_to",
        ),
    ),
    Mutation(
        "what was not written yet is taken for written under a job that ended",
        "model/rows.py",
        r"if not both:",
        "if True:",
        (
            "tests/unit/test_dirty.py"
            "::test_what_was_not_written_yet_is_not_taken_for_written_under_a_job_that_ended",
        ),
    ),
    Mutation(
        "attempts not charged on recovery",
        "ops/restore.py",
        r"if clean:\n                give_back",
        "if True:\n                give_back",
        SQLITE,
    ),
    Mutation(
        "a unit split: a cut of one shard",
        "ops/cut.py",
        r"for shard in shards(:\s+if shard\.dirty is not None:\s+mark_starts\(shard\.dirty\))",
        r"for shard in shards[:1]\1",
        SQLITE,
    ),
    Mutation(
        "a run that had begun forgotten by the cut",
        "ops/cut.py",
        r"mark_starts\(shard\.dirty\)",
        "shard.dirty.starts.clear()",
        SQLITE,
    ),
    Mutation(
        "an end takes back the start of another run",
        "ops/mark.py",
        r"if starts and starts\[0\]\.record is record:",
        "if starts:",
        (*SQLITE, "tests/unit/test_dirty.py"),
    ),
    Mutation(
        "the end of a batch takes back the start of another run",
        "ops/mark.py",
        r"while starts and starts\[0\]\.record\.delivery is not starts\[0\]:",
        "while starts:",
        (
            "tests/unit/test_dirty.py"
            "::test_a_batch_that_ends_takes_its_own_starts_back_and_no_others",
        ),
    ),
    Mutation(
        "a job with more to say is marked by the short row of its run",
        "ops/mark.py",
        r"and side is None\n",
        "and True\n",
        (
            "tests/unit/test_dirty.py"
            "::test_a_job_that_changed_otherwise_since_it_came_in_has_no_short_end",
        ),
    ),
    Mutation(
        "the result of a short row is lost under a newer row without it",
        "model/rows.py",
        r"result = full_row\(older\)\[RESULT\]",
        "result = older[RESULT] if len(older) > RESULT else None",
        ("tests/unit/test_dirty.py::test_a_row_without_its_result_keeps_that_of_a_short_one",),
    ),
    Mutation(
        "rows of several kinds take the states of one another",
        "storage/sqlite/packed.py",
        r"found \+= map\(_PLACES\[_IN_RUN\[place\]\], self\.runs\)",
        "found += list(map(_PLACES[_IN_RUN[place]], self.runs))[::-1]",
        ("tests/property/test_sqlite_packed.py::test_rows_of_all_widths_go_together",),
    ),
    Mutation(
        "a job that came due late stands before its turn after a restart",
        "ops/restore.py",
        r"(options\.is_plain\n\s+and )found\.run_at_ms <= run_at_ms <= entered_ms",
        r"\1True",
        (*SQLITE, UNLIKE),
    ),
    Mutation(
        "a held key forgotten by a restart",
        "ops/restore.py",
        r"if record\.state > ACTIVE and is_held\(record\.claim\)",
        "if record.state < ACTIVE and is_held(record.claim)",
        SQLITE,
    ),
    Mutation(
        "wake-up forgotten",
        "shard/places.py",
        r"            waiters\.wake\(n\)\n            return",
        "            waiters.wake(n - 1)\n            return",
        ("tests/threads/test_wait.py::test_a_blocked_pull_is_woken_by",),
    ),
    Mutation(
        "result stored after the completion shows",
        "ops/finish.py",
        r"        put\(job_id, data\)",
        "        shard.after.append(lambda: put(job_id, data))",
        ("tests/stateful/test_moments.py",),
    ),
    Mutation(
        "a log outlives its job",
        "ops/finish.py",
        r"        drop_log\(state, queue\.shard, record\.id\)",
        "        pass",
        ("tests/unit/test_job_logs.py",),
    ),
    Mutation(
        "a log outlives a job that makes room",
        "ops/finish.py",
        r"            drop_log\(state, queue\.shard, job_id\)",
        "            pass",
        ("tests/unit/test_job_logs.py",),
    ),
    Mutation(
        "a line of a log under another's name on disk",
        "ops/log_rows.py",
        r"\{number % LINES\}",
        "{number % 7}",
        ("tests/unit/test_job_logs.py",),
    ),
    Mutation(
        "the minute of the look, not of the count",
        "shard/tally.py",
        r"at = 2 \* \(self\.looked_ms // MINUTE_MS % _MINUTES\)",
        "at = 2 * ((self.looked_ms + 60_000) // MINUTE_MS % _MINUTES)",
        ("tests/unit/test_figures.py",),
    ),
    Mutation(
        "what is counted is marked at the close alone",
        "ops/tally.py",
        r"shard\.counting\[queue\] = None",
        "pass",
        ("tests/unit/test_figures.py",),
    ),
    Mutation(
        "a mark that a file keeps is of the wrong hour",
        "ops/tally.py",
        r"minutes_name\(queue\.name, hour\)",
        "minutes_name(queue.name, hour - 1)",
        SQLITE,
    ),
    Mutation(
        "a listener falls asleep on an event",
        "model/mailbox.py",
        r"if self\.items or self\._closed:",
        "if self._closed:",
        ("tests/threads/test_listener_trouble.py",),
    ),
    Mutation(
        "a verb looks at the listener before it adds the event",
        "stores/subscriptions.py",
        r"if len\(items\) < easy:((\n.*){4})\n +#.*\n.*\n +box\.ring\(\)",
        r"if box.awake and len(items) < easy:\1",
        ("tests/threads/test_listener_trouble.py",),
    ),
    Mutation(
        "callbacks hear all types",
        "client/queue_events.py",
        r"None if ALL in names else names",
        "None",
        ("tests/unit/test_heard_types.py",),
    ),
    Mutation(
        "checks look only for those who subscribe at the manager",
        "stores/subscriptions.py",
        r'"health" in types\) and inbox\.buffer is not None',
        "\"health\" in types) and inbox.name.startswith('events-')",
        ("tests/unit/test_heard_types.py",),
    ),
    Mutation(
        "the end of the last job but one says that its queue ran dry",
        "ops/finish.py",
        r"if queue\.admitted - queue\.departed != ",
        "if queue.admitted - queue.departed < ",
        ("tests/unit/test_events_virtual.py",),
    ),
    Mutation(
        "a queue that was touched between two rounds is not looked at",
        "observe/checks.py",
        r"if seen\.pop\(name, None\) != number:",
        "if seen.pop(name, number) != number:",
        ("tests/unit/test_checks.py",),
    ),
    Mutation(
        "a webhook is registered and not kept",
        "observe/webhooks.py",
        r"            mark_hook\(self\._state, hook_id\)",
        "            pass",
        SQLITE,
    ),
    Mutation(
        "a webhook that hangs keeps all senders",
        "observe/outbox.py",
        r"self\._busy\[delivery\.hook_id\] < SHARE",
        "True",
        ("tests/threads/test_webhook_server.py",),
    ),
    Mutation(
        "deliveries to a disabled webhook are tried on",
        "observe/outbox.py",
        r"if not self\._wanted\(delivery\.hook_id\):",
        "if False:",
        ("tests/unit/test_webhooks.py",),
    ),
    Mutation(
        "an abandoned iterator stays among the listeners",
        "stores/subscriptions.py",
        r" and not e\[2\]\.is_abandoned",
        "",
        ("tests/threads/test_queue_events.py",),
    ),
    Mutation(
        "only the first address of a webhook's host is looked at",
        "model/webhooks.py",
        r"for address in addresses:",
        "for address in list(addresses)[:1]:",
        ("tests/unit/test_webhooks.py",),
    ),
    Mutation(
        "the clean-up frees keys whose time was extended",
        "shard/unique_keys.py",
        r"if stands\(record, now\):\n( +heappush)",
        r"if False:\n\1",
        ("tests/unit/test_cleanup.py",),
    ),
    Mutation(
        "a sweep in bites takes out what lives",
        "shard/deadlines.py",
        r"for entry in kept:",
        "for entry in kept[1:]:",
        ("tests/unit/test_cleanup.py",),
    ),
    Mutation(
        "a verb sweeps all that is stale at once",
        "shard/deadlines.py",
        r"BITE if len\(self\.old\) > AT_ONCE else AT_ONCE",
        "max(1, len(self.old))",
        ("tests/property/test_deadlines.py",),
    ),
    Mutation(
        "a pass keeps the interpreter until it is done",
        "tasks/give_way.py",
        r"clock\.wait\(self\._lock, self\._rest_ms\)",
        "pass",
        ("tests/unit/test_give_way.py",),
    ),
    Mutation(
        "a late pass does not give way",
        "ops/stalls.py",
        r"            give_way\(\)\n",
        "",
        ("tests/unit/test_give_way.py",),
    ),
    Mutation(
        "a queue let go from under a verb",
        "ops/tidy.py",
        r"gone = sys\.getrefcount\(queue\) <= known \+ sys\.getrefcount\(stranger\)",
        "gone = stranger is not None",
        ("tests/unit/test_cleanup.py::test_a_queue_that_somebody_is_about_to_use_is_not_let_go",),
    ),
    Mutation(
        "a broken task tried at every wake-up",
        "tasks/scheduler.py",
        r"if now < self\.not_before:",
        "if False:",
        ("tests/unit/test_watchmen.py",),
    ),
    Mutation(
        "a job that waits is not registered",
        "ops/flow.py",
        r"( +)(state\.dependencies\.register\(record\.id, links\.edges\))\n( +failure = None\n)",
        r"\3\1links.edges or state\n",
        ("tests/unit/test_dependencies.py",),
    ),
    Mutation(
        "a completed job leaves no proof for those that wait",
        "ops/outcomes.py",
        r"if was not in \(COMPLETED, FAILED\):",
        "if was != FAILED:",
        ("tests/unit/test_dependencies.py",),
    ),
    Mutation(
        "a removed dependency is not told",
        "ops/outcomes.py",
        r"if was != COMPLETED:\n( +# whoever)",
        r"if was == FAILED:\n\1",
        ("tests/unit/test_dependencies.py",),
    ),
    Mutation(
        "how a failure left an edge is not written",
        "ops/outcomes.py",
        r"if dirty is None or status_of\(links\.edges\[job_id\]\) == UNMET:",
        "if True:",
        (f"{FLOWS}::test_how_a_child_had_ended_counts_after_a_crash_though_it_runs_again",),
    ),
    Mutation(
        "of many edges those that changed are not in the cut",
        "ops/outcomes.py",
        r"mark_edges\(record\.queue, record, links\)(\n +# after that)",
        r"pass\1",
        (f"{FLOWS}::test_how_a_child_had_ended_counts_after_a_crash_though_it_runs_again",),
    ),
    Mutation(
        "many edges that were settled before the job came in are not written",
        "ops/admit.py",
        r"mark_edges\(queue, record, links\)",
        "pass",
        (f"{FLOWS}::test_a_job_that_came_after_all_its_dependencies_knows_them_after_a_crash",),
    ),
    Mutation(
        "many edges that a retry settled are not written",
        "ops/flow.py",
        r"mark_edges\(queue, record, links\)(\n +if not links\.unmet:)",
        r"pass\1",
        (f"{FLOWS}::test_what_failed_before_a_retry_is_known_after_a_crash",),
    ),
    Mutation(
        "a completion forgets those of its shard that wait",
        "ops/finish.py",
        r"if freed is not None:",
        "if False:",
        ("tests/unit/test_dependencies.py",),
    ),
    Mutation(
        "the drain forgets those that wait behind a full bite",
        "ops/flow.py",
        r"_settle_met\(state, record\.queue\.shard, (told\.pop\(record\.queue\.shard\))\)",
        r"\1",
        (
            "tests/unit/test_flow_costs.py"
            "::test_many_dependents_of_one_job_are_told_without_holding_its_lock_for_all",
        ),
    ),
    Mutation(
        "a rebuild lets nobody go that waits for nothing",
        "ops/recover.py",
        r"if not links\.unmet:\n( +record\.unblock)",
        r"if False:\n\1",
        (
            "tests/threads/test_interrupts.py"
            "::test_an_exception_at_some_lines_of_a_verb_leaves_balanced_books"
            "[completion_in_a_batch_that_many_wait_for]",
        ),
    ),
    Mutation(
        "a failed child changes edges that an earlier one has made loose",
        "ops/flow.py",
        r" and status_of\(links\.edges\[job_id\]\) == UNMET:\n( +failure = failure or apply)",
        r":\n\1",
        (FLOWS,),
    ),
    Mutation(
        "who goes on wakes nobody for what is left",
        "ops/go_on.py",
        r"elif queue\.waiters\.line:",
        "elif False:",
        ("tests/unit/test_go_on.py",),
    ),
    Mutation(
        "who goes on passes over what is due",
        "ops/go_on.py",
        r"and \(due is None or due > now\)\n",
        "\n",
        ("tests/unit/test_go_on.py",),
    ),
    Mutation(
        "a link that is taken with the last of a batch is lost",
        "client/crew.py",
        r"while following is not None:",
        "while following is not None and len(jobs) == 1:",
        (
            "tests/threads/test_chains_of_workers.py"
            "::test_what_follows_the_last_of_a_batch_runs_too",
        ),
    ),
    Mutation(
        "leaves of one parent that have a thing of their own keep what they share",
        "model/job.py",
        r"side = self\.side = side\.twin\(\)",
        "pass",
        (FLOWS,),
    ),
    Mutation(
        "a cancelled run is not charged",
        "ops/cancel.py",
        r"now, charged=row\)",
        "now)",
    ),
    Mutation(
        "a handler is not told that its job was cancelled",
        "ops/finish.py",
        r"    interrupt\(queue\.shard, record\.delivery, reason_of\(failure\)\)\n",
        "",
        ("tests/unit/test_control_flow.py",),
    ),
    Mutation(
        "a coroutine that is cancelled takes the wake with it",
        "ops/pull.py",
        r"queue\.waiters\.leave\(waiter\)\n        queue\.waiters\.wake\(1\)",
        "queue.waiters.leave(waiter)",
        ("tests/threads/test_aio.py",),
    ),
    *SCHEDULE_MUTATIONS,
)
