"""The seeded faults of schedulers and of jobs that repeat."""

from __future__ import annotations

from tests.stateful.mutation import Mutation

SCHEDULES = ("ScheduleMachine 60 40",)
SCHEDULES_ON_DISK = ("SqliteScheduleMachine 60 40",)
RESTART = "tests/unit/test_schedulers_restart.py"

SCHEDULE_MUTATIONS = (
    Mutation(
        "a scheduler's progress apart from its job",
        "ops/fire.py",
        r"mark_progress\(state, queue, schedule\)(\n        # the pass)",
        r"pass\1",
        (f"{RESTART}::test_a_kill_at_any_point_of_a_firing_leaves_one_job_for_the_slot",),
    ),
    Mutation(
        "a scheduled job that leaves at once stays on disk",
        "ops/fire.py",
        r"dirty\.fresh\.discard\(record\.id\)",
        "pass",
        (f"{RESTART}::test_a_job_that_leaves_at_once_leaves_the_file_too",),
    ),
    Mutation(
        "a scheduler's times that are the same begin anew",
        "ops/schedule.py",
        r"if timing != schedule\.definition\.timing:",
        "if True:",
        SCHEDULES,
    ),
    Mutation(
        "a scheduler goes on beyond its limit",
        "ops/fire.py",
        r"runs >= definition\.limit:",
        "runs > definition.limit:",
        SCHEDULES,
    ),
    Mutation(
        "a missed run is caught up with unasked",
        "ops/fire.py",
        r"not missed or definition\.catch_up",
        "True",
        SCHEDULES,
    ),
    Mutation(
        "a run that would overlap comes in",
        "ops/fire.py",
        r"definition\.prevent_overlap and _is_live",
        "False and _is_live",
        SCHEDULES,
    ),
    Mutation(
        "a run without a worker comes in",
        "ops/fire.py",
        r"definition\.skip_if_no_worker and not",
        "False and not",
        SCHEDULES,
    ),
    Mutation(
        "a wall clock set back fires again",
        "model/timing.py",
        r"next_ms\(max\(planned_ms, now_ms\)\)",
        "next_ms(now_ms)",
        (
            "tests/unit/test_repeat.py"
            "::test_a_wall_clock_set_back_during_a_run_does_not_have_it_run_again",
        ),
    ),
    Mutation(
        "a wall clock set forward has missed nothing",
        "ops/fire.py",
        r"if late_ms \+ jump > LATE_MS:",
        "if late_ms > LATE_MS:",
        SCHEDULES,
    ),
    Mutation(
        "a wall clock that had been wrong is waited for",
        "ops/fire.py",
        r"if jump < -CORRECTION_MS:",
        "if False:",
        SCHEDULES,
    ),
    Mutation(
        "a period loses its phase",
        "model/timing.py",
        r"return planned_ms \+ \(\(now_ms - planned_ms\) // every \+ 1\) \* every",
        "return now_ms + every",
        SCHEDULES,
    ),
    Mutation(
        "a run at once beside one that is near",
        "ops/schedule.py",
        r"\(first - now\) \* 2 < second - first",
        "False",
        SCHEDULES,
    ),
    Mutation(
        "a job repeats once more than its limit",
        "ops/repeat.py",
        r"plan\.run >= plan\.limit",
        "plan.run > plan.limit",
        SCHEDULES,
    ),
    Mutation(
        "a job repeats beyond its end",
        "ops/repeat.py",
        r"if plan\.end_ms is not None and \(moment if by_wall",
        "if plan.end_ms == -1 and (moment if by_wall",
        SCHEDULES,
    ),
    Mutation(
        "a scheduler that has changed is not on disk",
        "ops/schedule.py",
        r"schedule\.progress = progress\n            mark_schedule\(state, queue, schedule\)",
        "schedule.progress = progress",
        SCHEDULES_ON_DISK,
    ),
    Mutation(
        "a process that was killed has no grace",
        "ops/restore.py",
        r"0 if clean else LATE_MS",
        "0",
        SCHEDULES_ON_DISK,
    ),
    Mutation(
        "a scheduler is where it was before it moved",
        "registry/schedules.py",
        r"left\.leave\(\)",
        "pass",
        SCHEDULES,
    ),
    Mutation(
        "a fixed time that comes twice runs twice",
        "model/cron.py",
        r"found = self\._next_fixed\(after\)",
        "found = self._next_elapsed(after)",
        ("tests/unit/test_cron.py::test_the_next_five_are_those_of_the_table",),
    ),
    Mutation(
        "an even run of times goes on where the clocks are moved",
        "model/cron.py",
        r"min\(last - offset, end\)",
        "(last - offset)",
        ("tests/unit/test_cron.py",),
    ),
    Mutation(
        "a pass of the harness takes what has come since it looked ahead for nothing",
        "testing/stage.py",
        r"looked_ahead, self\._looked_ahead = self\._looked_ahead, False",
        "looked_ahead = True",
        ("tests/unit/test_schedulers.py",),
    ),
    Mutation(
        "a fixed time looked for in the second hour is in the first",
        "model/cron.py",
        r"if moment\.fold:((?:.|\n)+?)if instant > after:",
        r"if False:\1if True:",
        ("tests/unit/test_cron.py::test_the_next_five_are_those_of_the_table",),
    ),
)
