"""What a file has beside jobs is there after a kill as it was at the last commit.

Of counts by the minute a kill takes some, see `test_figures`.
"""

from pathlib import Path

from bunqueue_py import Ack, Deduplication, JobSpec, Queue, QueueManager
from bunqueue_py.ops.query import check
from bunqueue_py.testing import VirtualClock
from tests.storage_check import check_storage
from tests.unit.test_webhooks import URL


def opened(path: Path, clock: VirtualClock) -> QueueManager:
    return QueueManager(path, clock=clock, background=False)


def killed(manager: QueueManager) -> None:
    manager.flush()
    storage = manager._state.storage
    storage._abandon()  # type: ignore[union-attr]


def said_of(manager: QueueManager) -> dict[str, object]:
    """Everything that a user can ask about what is not a job."""
    mail = Queue("mail", manager)
    limits = mail.limits.status()
    return {
        "paused": (mail.is_paused, [g for g in mail.groups if mail.groups[g].is_paused]),
        "limits": (limits.concurrency, limits.rate_limit, mail.stalls.config, mail.dlq.config),
        "group": mail.groups["a"].active(),
        "schedulers": [
            (each.id, each.next_run_at, each.runs) for each in manager.schedulers.list()
        ],
        "hooks": sorted((hook.id, hook.url, hook.enabled) for hook in manager.webhooks.list()),
        "key": mail.deduplication.owner("throttled"),
        "proofs": dict(manager._state.proofs.pinned),
    }


def test_everything_else_that_a_file_keeps_survives_a_kill(tmp_path: Path) -> None:
    path, clock = tmp_path / "jobs.db", VirtualClock()
    manager = opened(path, clock)
    mail, other = Queue("mail", manager), Queue("other", manager)
    mail.limits.set_concurrency(7)
    mail.limits.set_rate_limit(3, per=60)
    mail.stalls.configure(interval=50)
    mail.dlq.configure(max_entries=17)
    mail.groups["a"].set_concurrency(2)
    mail.groups["b"].pause()
    mail.schedulers.upsert("nightly", every=3600, job=JobSpec("report"))
    hook = manager.webhooks.add(URL, "job.failed", secret="hush")
    # a proof: it leaves at once, and a job that needs its result waits for another besides
    left = other.add("left", remove_on_complete=True)
    second = other.add("second", delay=3600)
    waits = other.add("waits", depends_on=[left, second])
    taken = manager.pull("other")
    assert taken is not None
    taken.log("begun")
    manager.ack(taken, {"n": 1})
    # a line of log of a job that is kept
    other.add("first")
    done = manager.pull("other")
    assert done is not None
    done.log("half")
    manager.ack_batch([Ack(done)])
    # a key that outlives its job
    throttled = Deduplication("throttled", ttl=600, hold="ttl")
    mail.add("once", deduplication=throttled, remove_on_complete=True)
    once = manager.pull("mail")
    assert once is not None
    manager.ack(once)
    mail.pause()
    clock.advance(seconds=30)
    manager.run_pending()
    before = said_of(manager)
    killed(manager)
    for _ in range(2):  # a kill before anything was done is survived as well
        manager = opened(path, clock)
        check(manager._state)
        check_storage(manager, str(path))
        mail, other = Queue("mail", manager), Queue("other", manager)
        assert said_of(manager) == before
        assert manager._state.webhooks.spec(hook).secret == "hush"
        assert manager.wait_for(left.id, timeout=0) == {"n": 1}
        assert [e.text for e in other.logs(done.id).entries] == ["half"]
        assert manager.get_state(waits.id) == "waiting-children"
        killed(manager)
    manager = opened(path, clock)
    other = Queue("other", manager)
    other.promote(second.id)
    run = manager.pull("other")
    assert run is not None
    assert run.id == second.id
    manager.ack(run)
    assert manager.get_state(waits.id) == "waiting"
    assert Queue("mail", manager).add("again", deduplication=throttled).duplicate
    manager.close()
