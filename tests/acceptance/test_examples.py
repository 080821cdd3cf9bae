"""The examples of workers run as a stranger would run them."""

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def run(name: str, folder: Path) -> str:
    made = subprocess.run(
        [sys.executable, EXAMPLES / name],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert made.stderr == ""
    return made.stdout


@pytest.mark.slow
def test_the_cpu_bound_worker_counts_all_primes(tmp_path: Path) -> None:
    assert run("cpu_bound.py", tmp_path).startswith("14683 primes below 160,000")


@pytest.mark.slow
def test_the_crawler_fetches_every_page_once(tmp_path: Path) -> None:
    assert run("crawler.py", tmp_path) == "40 pages fetched, 0 failed\n"


def test_the_web_app_adds_a_job_and_waits_for_it() -> None:
    pytest.importorskip("starlette")
    spec = importlib.util.spec_from_file_location("web_app", EXAMPLES / "web_app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    async def main() -> Any:
        async with module.lifespan(module.app):
            status, made = await call(module.app, "POST", "/images", {"image": "cat.png"})
            return status, await call(module.app, "GET", f"/images/{made['id']}")

    assert asyncio.run(asyncio.wait_for(main(), 30)) == (
        202,
        (200, {"image": "cat.png", "width": 80}),
    )


async def call(app: Any, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """One request by the protocol of ASGI, without a server."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    text = b"".join(m.get("body", b"") for m in sent if m["type"] == "http.response.body")
    return sent[0]["status"], json.loads(text)
