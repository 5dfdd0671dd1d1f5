"""A program behind HTTP, beside onnxruntime in the same application: throughput and times of requests.

    python -m benchmarks.serving NET.tessel NET.onnx [--clients 1 4 16] [--seconds 3] [--rounds 5]

Both are served by `examples/serve_with_fastapi.py` (needs fastapi and uvicorn), each by a process of its own,
with as many threads a call as the program was compiled for. Clients are threads of this process that keep
their connections and send one request after the other. In each round one server runs, then the other: what is
printed are medians over rounds, and of ratios within a round.
"""

from __future__ import annotations

import argparse
import http.client
import importlib
import io
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.simulator.provenance import commit, processor

_SERVED = ("tessel", "onnxruntime")


@dataclass(frozen=True, slots=True)
class Load:
    """What one server did under load: requests a second, and times of requests in milliseconds."""

    rate: float
    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, times_s: Sequence[float], wall_s: float) -> Load:
        """Return what requests of these times in so many seconds say."""
        p50, p99 = np.percentile(times_s, (50, 99)) * 1e3
        return cls(len(times_s) / wall_s, float(p50), float(p99))


def main() -> None:
    """Print a table of what both servers did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("onnx")
    parser.add_argument("--clients", type=int, nargs="+", default=(1, 4, 16))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", choices=_SERVED, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        _serve(given)
        return
    import tessel  # noqa: PLC0415 - servers import it for themselves

    (spec,), threads = (manifest := tessel.load(given.program).manifest).inputs, manifest.num_threads
    drawn = np.random.default_rng(0).standard_normal(spec.shape)
    body = io.BytesIO()
    np.save(body, drawn.astype(spec.dtype) if "float" in spec.dtype else np.zeros(spec.shape, spec.dtype))
    print(f"{processor()}, commit {commit()}, load {os.getloadavg()[0]:.1f}, {threads} threads a call.\n")
    print(
        "| clients | tessel /s | p50 ms | p99 ms | onnxruntime /s | p50 ms | p99 ms | ratio /s | p50 | p99 |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    ports = [_free_port() for _ in _SERVED]
    servers = [_started(which, port, given) for which, port in zip(_SERVED, ports, strict=True)]
    try:
        for port in ports:
            _await(port, body.getvalue())
        for number in given.clients:
            rounds = [
                [_loaded(port, number, given.seconds, body.getvalue()) for port in ports]
                for _ in range(given.rounds)
            ]
            print(_row(number, rounds), flush=True)
    finally:
        for server in servers:
            server.terminate()
            server.wait()


def _serve(given: argparse.Namespace) -> None:
    import uvicorn  # noqa: PLC0415 - no dependency of this project

    example = importlib.import_module("examples.serve_with_fastapi")
    if given.serve == "tessel":
        application = example.build(given.program)
    else:
        import onnxruntime  # noqa: PLC0415 - only where it is served

        import tessel  # noqa: PLC0415 - as above

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = tessel.load(given.program).manifest.num_threads
        session = onnxruntime.InferenceSession(given.onnx, options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        application = example.serving(lambda array: session.run(None, {name: array})[0], "onnxruntime")
    uvicorn.run(application, host="127.0.0.1", port=given.port, log_level="warning")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _started(which: str, port: int, given: argparse.Namespace) -> subprocess.Popen[bytes]:
    code = [sys.executable, "-m", "benchmarks.serving", given.program, given.onnx]
    return subprocess.Popen([*code, "--serve", which, "--port", str(port)])


def _await(port: int, body: bytes) -> None:
    """Return when the server has answered a few requests."""
    ends = time.monotonic() + 120
    while True:
        try:
            for _ in range(5):
                _request(http.client.HTTPConnection("127.0.0.1", port), body)
        except ConnectionRefusedError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.2)
        else:
            return


def _request(connection: http.client.HTTPConnection, body: bytes) -> None:
    connection.request("POST", "/run", body)
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"a server answered {answer.status}: {text[:200]!r}")


def _loaded(port: int, clients: int, seconds: float, body: bytes) -> Load:
    times_s: list[float] = []
    began_s = time.perf_counter()

    def run() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while (sent_s := time.perf_counter()) < began_s + seconds:
            _request(connection, body)
            times_s.append(time.perf_counter() - sent_s)

    threads = [threading.Thread(target=run) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Load.of(times_s, time.perf_counter() - began_s)


def _row(clients: int, rounds: Sequence[Sequence[Load]]) -> str:
    cells = [str(clients)]
    for which in zip(*rounds, strict=True):
        cells += [
            f"{statistics.median(each.rate for each in which):.0f}",
            f"{statistics.median(each.p50_ms for each in which):.2f}",
            f"{statistics.median(each.p99_ms for each in which):.2f}",
        ]
    ratios = [
        (ours.rate / its.rate, its.p50_ms / ours.p50_ms, its.p99_ms / ours.p99_ms) for ours, its in rounds
    ]
    cells += [f"{statistics.median(each):.2f}" for each in zip(*ratios, strict=True)]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
