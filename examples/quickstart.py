"""Counts words and links in a folder of text files: python examples/quickstart.py [FOLDER]

One job a file, four at once. Every fifth file fails at first and is tried again; a file that is no
UTF-8 can never succeed and ends among the dead letters.
"""

import re
import sys
import tempfile
from pathlib import Path

import bunqueue_py as bq
from bunqueue_py import Backoff, Job, Queue, QueueManager, Worker

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = {".md", ".py", ".rst", ".txt"}
LINK = re.compile(r"https?://[^\s<>()\"'`]+|\]\([^)\s]+\.md[^)\s]*\)")  # addresses, other pages
TERMINAL = sys.stdout.isatty()


def text_files(folders: list[Path]) -> list[Path]:
    return sorted(p for f in folders for p in f.rglob("*") if p.suffix in SUFFIXES and p.is_file())


def read(job: Job) -> dict[str, int]:
    """The handler: what it returns is the job's result, what it raises fails this attempt."""
    if job.data["number"] % 5 == 0 and job.attempt == 1:
        raise ConnectionError("the drive did not answer")  # tried again after the back-off
    try:
        text = Path(job.data["path"]).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        # another attempt would read the same bytes: give up at once
        raise bq.UnrecoverableError(f"no UTF-8, {error.reason} at byte {error.start}") from error
    return {"words": len(text.split()), "links": len(set(LINK.findall(text)))}


def show_progress(files: Queue, total: int) -> None:
    """Waits until the queue is empty, and says four times a second how far it is."""
    empty = False
    while not empty:
        try:
            files.wait_until_empty(timeout=0.25)
            empty = True
        except bq.WaitTimeoutError:
            pass
        now = files.counts()
        ended = now.completed + now.failed
        line = f"{ended} of {total} files done, {now.delayed} to be tried again"
        print(f"\r{line:<60}" if TERMINAL else line, end="" if TERMINAL else "\n", flush=True)
    print()


def main(folders: list[Path]) -> None:
    paths = text_files(folders)
    if not paths:
        sys.exit(f"no {' '.join(sorted(SUFFIXES))} files in {', '.join(map(str, folders))}")
    # every result is wanted, also where there are more than the 10,000 kept by default
    config = bq.ManagerConfig(keep_results=1_000_000, keep_completed=None)
    with tempfile.TemporaryDirectory() as scratch, QueueManager(config=config) as manager:
        broken = Path(scratch, "broken.txt")
        broken.write_bytes(b"caf\xe9 au lait")  # Latin-1, not UTF-8
        files = Queue("files", manager, defaults={"attempts": 3, "backoff": Backoff.fixed(0.5)})
        for number, path in enumerate([*paths, broken], start=1):
            files.add("read", {"number": number, "path": str(path)})
        with Worker(files, read, concurrency=4):
            show_progress(files, total=len(paths) + 1)

        done = files.get_jobs("completed", limit=1_000_000)
        done.sort(key=lambda job: -job.return_value["words"])
        print(f"{'file':<40}  {'words':>7}  {'links':>5}  {'attempts':>8}")
        for job in done[:12]:
            name, found = "/".join(Path(job.data["path"]).parts[-2:]), job.return_value
            print(f"{name:<40}  {found['words']:>7}  {found['links']:>5}  {job.attempt:>8}")
        print(f"... {len(done)} files in all; dead letters: {len(files.dlq)}")
        for entry in files.dlq.entries():
            print(f"{Path(entry.job.data['path']).name:<40}  {entry.reason}  {entry.error}")


if __name__ == "__main__":
    main([Path(sys.argv[1])] if len(sys.argv) > 1 else [ROOT / "docs", ROOT / "bunqueue_py"])
