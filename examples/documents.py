"""Counts the words of documents, a page a job: python examples/documents.py [FILE ...]

split -> its pages, side by side -> merge -> notify. `split` reads a file and adds a job for each
page while it runs; `merge` waits for the split, and the split for its pages. One page of each
document cannot be read, and what that does to the document is shown for each policy. Where the
policy is to wait, the page is mended in the end, and retried.
"""

import sys
import tempfile
from pathlib import Path

from bunqueue_py import (
    FlowNode,
    FlowProducer,
    FlowResult,
    Job,
    QueueEvents,
    QueueManager,
    WaitForChildren,
    Worker,
)

LINES = 20  # of a page
POLICIES = ("fail_parent", "continue_parent", "ignore_dependency", "remove_dependency")
ROOT = Path(__file__).resolve().parents[1]


def split(job: Job) -> dict[str, object]:
    """Called twice: to add the pages, and when they are done."""
    if not job.children_ids:
        lines = Path(job.data["path"]).read_text(encoding="utf-8").splitlines()
        for number, start in enumerate(range(0, len(lines), LINES)):
            page = {"number": number, "lines": lines[start : start + LINES]}
            job.add_child(
                FlowNode("pages", "count", page, on_failure=job.data["policy"], attempts=1)
            )
        raise WaitForChildren()
    words = sum(job.children_values().values())
    lost = len(job.failed_children()) + len(job.ignored_failures())
    return {"words": words, "lost": lost}


def count(job: Job) -> int:
    """The words of a page; that of number 1 is torn."""
    if job.data["number"] == 1 and not job.data.get("mended"):
        raise ValueError("the page is torn")
    return sum(len(line.split()) for line in job.data["lines"])


def merge(job: Job) -> dict[str, object]:
    """Has the result of the split among the values of its children."""
    (found,) = job.children_values().values()
    return {"path": job.data["path"], **found}


def notify(job: Job) -> str:
    """The last link: says what came of the document."""
    (found,) = job.children_values().values()
    return f"{Path(found['path']).name}: {found['words']} words, {found['lost']} pages lost"


def document(path: Path, policy: str) -> FlowNode:
    """The flow of one document, from its end."""
    data = {"path": str(path), "policy": policy}
    merging = FlowNode("documents", "merge", data, [FlowNode("documents", "split", data)])
    return FlowNode("documents", "notify", data, [merging])


def mend_and_wait(manager: QueueManager, flows: FlowProducer, path: Path) -> FlowResult:
    """Adds the flow of a document that waits for its torn page, and mends that."""
    with QueueEvents("pages", manager) as events:
        tree = flows.add(document(path, "wait"))
        torn = next(event.job_id for event in events if event.type == "failed")
    page = manager.get_job(torn)
    page.update_data({**page.data, "mended": True})
    page.retry()
    tree.job.result(timeout=60)
    return tree


def main(paths: list[Path]) -> None:
    paths = paths or [ROOT / "README.md"]
    with tempfile.TemporaryDirectory() as folder, QueueManager(Path(folder) / "jobs.db") as manager:
        flows = FlowProducer(manager)
        trees = [
            (policy, flows.add(document(path, policy))) for path in paths for policy in POLICIES
        ]
        routes = {"split": split, "merge": merge, "notify": notify}
        with (
            Worker("documents", routes, manager=manager, concurrency=2),
            Worker("pages", count, manager=manager, concurrency=4),
        ):
            for queue in ("documents", "pages"):
                manager.wait_until_empty(queue, timeout=60)
            trees += [("wait", mend_and_wait(manager, flows, path)) for path in paths]
        for policy, tree in trees:
            job = tree.job.refresh()
            told = job.return_value if str(job.state) == "completed" else f"FAILED: {job.error}"
            print(f"{policy:<18} {told}")
        print(flows.get(trees[0][1].job, depth=3))


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
