"""A Starlette app that adds jobs and waits for one, with its worker on the app's own event loop.

    pip install starlette uvicorn
    uvicorn examples.web_app:app

The worker starts and ends with the app (its lifespan), in the process that serves: so it runs under
`--reload` too, and with several processes of the server each has its own queue in memory. With a
file, one process alone may open it: then run one.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from bunqueue_py import Job, Queue, QueueManager, Worker


async def thumbnail(job: Job) -> dict[str, object]:
    """What takes long; here it only pretends to."""
    job.update_progress(50, "scaled")
    return {"image": job.data["image"], "width": 80}


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    with QueueManager() as manager:
        app.state.images = Queue("images", manager)
        async with Worker(app.state.images, thumbnail, concurrency=20):
            yield


async def add(request: Request) -> JSONResponse:
    """POST /images: adds a job, and answers at once."""
    data = await request.json()
    images: Queue = request.app.state.images
    job = await images.manager.aio.push(images.name, data, name="thumbnail")
    return JSONResponse({"id": job.id}, status_code=202)


async def result(request: Request) -> JSONResponse:
    """GET /images/{id}: waits for that job, up to ten seconds."""
    images: Queue = request.app.state.images
    made = await images.manager.aio.wait_for(request.path_params["id"], timeout=10)
    return JSONResponse(made)


app = Starlette(
    routes=[
        Route("/images", add, methods=["POST"]),
        Route("/images/{id}", result),
    ],
    lifespan=lifespan,
)
