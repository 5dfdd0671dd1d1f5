"""Serve a program or a pipeline over HTTP: NumPy's own format in and out, one request a call.

    pip install fastapi uvicorn
    python examples/serve_with_fastapi.py out/net.tessel
    curl --data-binary @x.npy http://127.0.0.1:8000/run --output y.npy

A plan of inference (`tessel tune … --infer`) is served by a process for each device: give its file, and the
model's `module:function` behind it, which says that its code is trusted. Requests run in the framework's
threads; a program runs as many at once as there are cores, a pipeline as many as it has room for. Only this
machine can connect.
"""

import io
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool

import tessel


def build(path: str, model: str | None = None) -> FastAPI:
    """Return an application that runs what a file holds."""
    program = tessel.load(path, model=model) if model else tessel.load(path)
    return serving(program, program.manifest.model)


def serving(program: Any, title: str) -> FastAPI:
    """Return an application that calls a program for each request."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        if hasattr(program, "close"):
            program.close()

    app = FastAPI(title=title, lifespan=lifespan)

    async def run(request: Request) -> Response:
        body = await request.body()
        try:
            array = np.load(io.BytesIO(body), allow_pickle=False)
            result = await run_in_threadpool(program, array)
        except (TypeError, ValueError) as error:
            raise HTTPException(status_code=422, detail=str(error)) from error
        written = io.BytesIO()
        np.save(written, result, allow_pickle=False)
        return Response(written.getvalue(), media_type="application/octet-stream")

    app.add_api_route("/run", run, methods=["POST"], response_class=Response)
    return app


if __name__ == "__main__":
    uvicorn.run(build(*sys.argv[1:3]), host="127.0.0.1", port=8000, log_level="warning")
