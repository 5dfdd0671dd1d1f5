"""Serve one page on this machine alone, to who has its address.

The server listens on the loopback address. The address holds a random token, without which nothing is
answered, and requests by another host's name are refused, so that no page of the web reads it (DNS
rebinding). Nothing is written, and what is asked for is read as numbers. The standard library's server
serves its one user well enough. Checked in tests/tessel/jobs/test_serving.py.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from tessel.errors import UsageError
from tessel.progress import interrupts

LOOPBACK = "127.0.0.1"

MAX_TARGET = 8192
"""Bytes of a request's target: more than every field of a form of 1000 stages needs."""

REQUEST_S = 30.0
"""Seconds in which a request must have been sent."""

POLL_S = 0.2


@contextmanager
def served(answer: Callable[[Mapping[str, str]], bytes], *, port: int = 0) -> Iterator[str]:
    """Serve a page while the body runs.

    Args:
        answer: returns the page as HTML for the fields of a form; called in a thread of its own.
        port: to listen on; 0 for a free one.

    Yields:
        The page's address.

    Raises:
        UsageError: the port is taken, or may not be listened on.
    """
    token = secrets.token_urlsafe(16)
    try:
        server = ThreadingHTTPServer((LOOPBACK, port), _handler(answer, token))
    except (OSError, OverflowError) as error:
        raise UsageError(f"--port {port} cannot be listened on, {error}; give another, or none") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), name="server", daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}/{token}/"
    finally:
        server.shutdown()
        server.server_close()


def serve_until_interrupt(
    answer: Callable[[Mapping[str, str]], bytes], *, port: int, tell: Callable[[str], None]
) -> None:
    """Serve a page until Ctrl-C.

    Args:
        answer: as of `served`.
        port: as of `served`.
        tell: told the address, once it is served.
    """
    over = threading.Event()
    with served(answer, port=port) as address, interrupts.called(over.set):
        tell(address)
        while not over.wait(POLL_S):
            pass


def _handler(answer: Callable[[Mapping[str, str]], bytes], token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers GET requests of the one page."""

        timeout = REQUEST_S
        server_version = "tessel"
        sys_version = ""

        def do_GET(self) -> None:
            port = self.connection.getsockname()[1]
            names = {f"{LOOPBACK}:{port}", f"localhost:{port}"}
            target = urlsplit(self.path)
            is_ours = secrets.compare_digest(target.path.encode(), f"/{token}/".encode())
            if self.headers.get("Host") not in names or not is_ours:
                self.send_error(HTTPStatus.NOT_FOUND)
            elif len(self.path) > MAX_TARGET:
                self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            else:
                self._send(answer(dict(parse_qsl(target.query, keep_blank_values=True))))

        def _send(self, page: bytes) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: addresses hold the token."""

    return Handler
