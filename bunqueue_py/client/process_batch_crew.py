"""Processes whose handler takes several jobs in one call."""

from __future__ import annotations

from collections.abc import Sequence

from .batch_crew import BatchCrew
from .job import Job
from .process_crew import ChildDied, ProcessCrew
from .turn import Slot


class ProcessBatchCrew(ProcessCrew, BatchCrew):
    """A crew each of whose slots has its process run one batch at a time.

    What ends the process ends the whole batch: the others of a batch that is killed for one of
    them go back, uncharged. One that is cancelled is told so, and ends with the batch.
    """

    takes_batches = True

    def _run_batch(self, slot: Slot, jobs: Sequence[Job]) -> None:
        # before it is the current one: a process that cannot be had takes none of the jobs
        if not self._has_child(slot):
            self._give_all_back(slot)
            return
        child = self._children[slot]
        slot.current = jobs[0]
        if "active" in self.heard:
            for job in jobs:
                self._tell("active", job)
        done: list[tuple[Job, bytes | None]] = []
        try:
            ends = self._calls[slot](list(jobs))
        except ChildDied as death:
            slot.current = None
            mine = self._mine[slot]
            left = [job for job in jobs if mine.pop(str(job.token), None) is not None]
            self._died(slot, child, left, death)
        except BaseException as error:  # what the handler raised
            for job in jobs:
                self._end_one(slot, job, error, work_done=child.work_done)
        else:
            for job, end in zip(jobs, ends, strict=True):
                if end.error is not None:
                    self._end_one(slot, job, end.error, work_done=end.work_done)
                elif self._mine[slot].pop(str(job.token), None) is not None:
                    done.append((job, end.data))
        finally:
            self._kill_at.pop(slot, None)
            slot.current = None
        slot.held.extend(done)
        self._flush(slot)

    def _give_all_back(self, slot: Slot) -> None:
        mine = self._mine[slot]
        for token, job in mine.copy().items():
            if mine.pop(token, None) is not None:
                self._backend.give_back(job.id, token)

    def _tokens(self, slot: Slot) -> list[str]:
        return [] if slot.current is None else list(self._mine[slot].copy())

    def _kill_later(self, slot: Slot, token: str) -> None:
        # the others of its batch go on
        if len(self._tokens(slot)) == 1:
            super()._kill_later(slot, token)
