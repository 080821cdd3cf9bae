"""A crawler on asyncio: each page is a job, fifty are fetched at once, none of them twice.

    python examples/crawler.py

It serves a small site on this machine and crawls that.
"""

import asyncio
import re

from bunqueue_py import DelayJob, Job, Queue, QueueManager, Worker

LINK = re.compile(r'href="(/[^"]*)"')
PAGES = 40


async def site(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Page n links to 2n+1 and 2n+2; page 7 is not there at first."""
    line = await reader.readline()
    path = line.split()[1].decode()
    number = int(path[1:] or 0)
    busy = number == 7 and not getattr(site, "asked", False)
    site.asked = number == 7 or getattr(site, "asked", False)  # type: ignore[attr-defined]
    links = [n for n in (2 * number + 1, 2 * number + 2) if n < PAGES]
    body = "".join(f'<a href="/{n}">{n}</a>' for n in links)
    status = "503 Busy" if busy else "200 OK"
    writer.write(f"HTTP/1.0 {status}\r\nContent-Type: text/html\r\n\r\n{body}".encode())
    await writer.drain()
    writer.close()


async def fetch(port: int, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def main() -> None:
    server = await asyncio.start_server(site, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with QueueManager() as manager:
        pages = Queue("pages", manager)

        async def crawl(job: Job) -> int:
            status, body = await fetch(port, job.data)
            if status == 503:
                raise DelayJob(0.05)  # come back later; that costs no attempt
            links = LINK.findall(body)
            for link in links:
                # the path is the job's id, so a page that is known is not added again
                pages.add("page", link, custom_id=link)
            return len(links)

        async with Worker(pages, crawl, concurrency=50):
            pages.add("page", "/0", custom_id="/0")
            await asyncio.to_thread(pages.wait_until_empty, 30)
        counts = pages.counts()
        print(f"{counts.completed} pages fetched, {counts.failed} failed")
    server.close()
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(main())
