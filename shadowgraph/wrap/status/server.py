"""HTTP status server of a wrapped run: for this user only, read only, with bounded resources.

The supervising process starts it; requests are answered in threads of its own. Every user of the machine, and every
container of a pod, can reach a port of 127.0.0.1: there a token is required. A Unix socket is protected by its mode.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs

from shadowgraph.common.exception_text import summary

if TYPE_CHECKING:
    from shadowgraph.wrap.status.pages import Pages

ADDRESS = "127.0.0.1"
_AT_ONCE = 8  # connections; further ones are told to retry
_PATIENCE = 10.0  # seconds for a whole connection
_POLL = 0.25
_LONGEST_PATH = 256
_DRAINED = 64 << 10  # bytes of an unused request body that are read, so that its sender can read the answer
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
_TEXT = "text/plain; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_REFUSED = (
    "this needs the token of the address that `shadowgraph wrap --status` printed, which is `status` in run.json too: "
    "in the path, as `Authorization: Bearer TOKEN` or as ?token=TOKEN\n"
)


class StatusServer:
    """Serves the state of one run folder until it is stopped.

    Parameters
    ----------
    folder
        The run folder. Only read; the processes of the run are not contacted.
    where
        A port of 127.0.0.1, 0 for any free one; or the path of a Unix socket to create, with mode 0600.
    memory
        Include the bytes of memory that findings show in the JSON; the page of a finding always has them.

    Attributes
    ----------
    url
        The address, with its token.

    Raises
    ------
    OSError
        When the port or the path is not available.
    """

    def __init__(self, folder: str | os.PathLike[str], where: int | str, memory: bool = False) -> None:
        from shadowgraph.wrap.status.pages import Pages

        pages = Pages(folder, memory)
        self._server = _Server(pages, where) if isinstance(where, int) else _UnixServer(pages, os.path.abspath(where))
        self._thread: threading.Thread | None = None
        self.url = self._server.url

    def start(self) -> None:
        """Start answering, in a thread that receives no signals."""
        thread = threading.Thread(target=self._serve, name="shadowgraph status", daemon=True)
        thread.start()
        self._thread = thread  # a thread that failed to start must not be joined

    def stop(self) -> None:
        """Stop answering."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join(_POLL)
        self._server.server_close()

    def _serve(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._server.serve_forever(_POLL)


class _Server(ThreadingHTTPServer):
    """Limits the number of connections, and the duration of each."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, pages: Pages, where: int | str) -> None:
        self.pages = pages
        self.token = "" if isinstance(where, str) else secrets.token_urlsafe(24)
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(cast(Any, where if isinstance(where, str) else (ADDRESS, where)), _Handler)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_address[1]}/{self.token}/"

    def knows(self, word: str) -> bool:
        """Whether a word is the token, compared in constant time."""
        return secrets.compare_digest(word.encode("utf-8", "surrogateescape"), self.token.encode())

    def server_bind(self) -> None:
        """Bind without looking up the host name, unlike the base class."""
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
        """Disconnect slow clients: a client that sends a byte now and then must not hold a connection for ever."""
        deadline = time.monotonic() - _PATIENCE
        with self._lock:
            late = [request for request, began in self._open.items() if began < deadline]
        for request in late:
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of disconnected clients; standard error belongs to the program."""


class _UnixServer(_Server):
    """The same server on a Unix socket."""

    address_family = socket.AF_UNIX
    _made = False

    @property
    def url(self) -> str:
        return f"unix:{self.server_address}"

    def server_bind(self) -> None:
        before = os.umask(0o177)  # other users cannot connect at any moment
        try:
            self.socket.bind(self.server_address)
            self._made = True  # else the path belongs to another server, and stays
        finally:
            os.umask(before)

    def server_close(self) -> None:
        super().server_close()
        if self._made:
            with contextlib.suppress(OSError):
                os.unlink(str(self.server_address))


class _Handler(BaseHTTPRequestHandler):
    """Handles one request."""

    timeout = _PATIENCE

    def do_GET(self) -> None:
        path = self._granted() if len(self.path) <= _LONGEST_PATH else None
        if not self._is_for_us():
            self._answer(HTTPStatus.FORBIDDEN, "this server answers to 127.0.0.1 and localhost only\n")
        elif path is None:
            self._answer(HTTPStatus.UNAUTHORIZED, _REFUSED)
        elif not path:
            self._answer(HTTPStatus.PERMANENT_REDIRECT, "")
        else:
            self._give(path)

    do_HEAD = do_GET

    def _granted(self) -> str | None:
        """The requested path without the token; None without a valid token. Empty when the slash after the token is
        missing, without which the page's relative links would fail."""
        server = cast(_Server, self.server)
        path, _, query = self.path.partition("?")
        first, slash, rest = path.removeprefix("/").partition("/")
        kind, _, bearer = self.headers.get("Authorization", "").partition(" ")
        if not server.token or (kind.lower() == "bearer" and server.knows(bearer.strip())):
            return path
        if server.knows(first):
            return slash + rest
        return path if any(map(server.knows, parse_qs(query).get("token", ()))) else None

    def _give(self, path: str) -> None:
        pages = cast(_Server, self.server).pages
        make = pages.of(path)
        if make is None:
            self._answer(HTTPStatus.NOT_FOUND, f"there is: {', '.join(pages.paths)}\n")
            return
        try:
            kind, content = make()
        except LookupError as error:
            self._answer(HTTPStatus.NOT_FOUND, f"{summary(error)[:300]}\n")
        except Exception as error:  # for example after the folder was moved: the next request may succeed
            reason = summary(error)[:300]
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"the run cannot be read: {reason}\n")
        else:
            self._send(HTTPStatus.OK, kind, content)

    def _is_for_us(self) -> bool:
        """Whether the client addressed this machine: another site's host name may have been made to resolve to it."""
        hosts = self.headers.get_all("Host") or []
        return len(hosts) == 1 and _HOST.fullmatch(hosts[0].strip()) is not None

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A short answer that does not quote the request."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._drain()
            code = HTTPStatus.METHOD_NOT_ALLOWED
        self._answer(HTTPStatus(code), "")

    def _answer(self, status: HTTPStatus, text: str) -> None:
        self._send(status, _TEXT, (text or f"{status.phrase.lower()}\n").encode("utf-8", "backslashreplace"))

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.request_version = "HTTP/1.0"  # whatever the request used: the answer has a status line
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        if status is HTTPStatus.PERMANENT_REDIRECT:
            self.send_header("Location", f"/{cast(_Server, self.server).token}/")
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
        """Logs nothing: standard error belongs to the program."""
