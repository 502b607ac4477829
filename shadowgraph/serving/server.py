"""The status server of a wrapped run: loopback only, read only, bounded, and never in the program's way."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

ADDRESS = "127.0.0.1"
_AT_ONCE = 8  # connections; more are told to come again
_PATIENCE = 10.0  # seconds a connection may take in all
_POLL = 0.25
_LONGEST_PATH = 256
_DRAINED = 64 << 10  # bytes of a body that nobody wants, so that its sender gets to read the answer
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
_TEXT = "text/plain; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class StatusServer:
    """Serves one run folder's state until it is stopped.

    Parameters
    ----------
    folder
        The run folder. Only read; the processes of the run are not talked to.
    port
        0 for any free one.

    Attributes
    ----------
    url
        Where it answers.

    Raises
    ------
    OSError
        When the port cannot be had.
    """

    def __init__(self, folder: str | os.PathLike[str], port: int) -> None:
        self._server = _Server(folder, port)
        self._thread: threading.Thread | None = None
        self.url = f"http://{ADDRESS}:{self._server.server_address[1]}/"

    def start(self) -> None:
        """Answer from here on, in a thread that gets no signals."""
        thread = threading.Thread(target=self._serve, name="shadowgraph status", daemon=True)
        thread.start()
        self._thread = thread  # one that could not be started must not be waited for

    def stop(self) -> None:
        """Answer no more."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join(_POLL)
        self._server.server_close()

    def _serve(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._server.serve_forever(_POLL)


class _Server(ThreadingHTTPServer):
    """At most so many connections at a time, each for so long at most."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, folder: str | os.PathLike[str], port: int) -> None:
        from shadowgraph.serving.pages import Pages

        self.pages = Pages(folder)
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__((ADDRESS, port), _Handler)

    def server_bind(self) -> None:
        """Without a look-up of our own name, as the base class does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            room = len(self._open) < _AT_ONCE
            if room:
                self._open[request] = time.monotonic()
        if room:
            super().process_request(request, client_address)
        else:
            with contextlib.suppress(OSError):
                request.settimeout(0)
                request.send(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off who takes too long: a client that sends a byte now and then must not keep a place for ever."""
        deadline = time.monotonic() - _PATIENCE
        with self._lock:
            late = [request for request, began in self._open.items() if began < deadline]
        for request in late:
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away, or is cut off, is nobody's business; standard error is the program's."""


class _Handler(BaseHTTPRequestHandler):
    """One request, one answer."""

    timeout = _PATIENCE

    def do_GET(self) -> None:
        pages = cast(_Server, self.server).pages
        make = pages.of(self.path.split("?", 1)[0]) if len(self.path) <= _LONGEST_PATH else None
        if not self._is_for_us():
            self._answer(HTTPStatus.FORBIDDEN, "this server answers to 127.0.0.1 and localhost only\n")
        elif make is None:
            self._answer(HTTPStatus.NOT_FOUND, f"there is: {', '.join(pages.paths)}\n")
        else:
            try:
                kind, content = make()
            except Exception as error:  # of a folder that somebody moved, for instance: the next request may do better
                reason = f"{type(error).__name__}: {error}".split("\n", 1)[0][:300]
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"the run cannot be read: {reason}\n")
            else:
                self._send(HTTPStatus.OK, kind, content)

    do_HEAD = do_GET

    def _is_for_us(self) -> bool:
        """Whether the client asked for this machine: a page of another site may have had its name resolve to here."""
        hosts = self.headers.get_all("Host") or []
        return len(hosts) == 1 and _HOST.fullmatch(hosts[0].strip()) is not None

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Short, and without what the client said."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._drain()
            code = HTTPStatus.METHOD_NOT_ALLOWED
        self._answer(HTTPStatus(code), "")

    def _answer(self, status: HTTPStatus, text: str) -> None:
        self._send(status, _TEXT, (text or f"{status.phrase.lower()}\n").encode("utf-8", "backslashreplace"))

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.request_version = "HTTP/1.0"  # whatever it was: the answer has a status
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _drain(self) -> None:
        text = self.headers.get("Content-Length", "") if hasattr(self, "headers") else ""
        with contextlib.suppress(OSError):
            self.rfile.read(min(int(text), _DRAINED) if text.isdecimal() else 0)

    def version_string(self) -> str:
        return "shadowgraph"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: standard error is the program's."""
