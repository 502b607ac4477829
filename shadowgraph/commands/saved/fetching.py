"""HTTP client for the JSON of a status server, run in the verb's thread. Connects to the local machine only."""

from __future__ import annotations

import http.client
import re
import socket
import time
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qs, urlsplit

from shadowgraph.common.console import tame
from shadowgraph.common.errors import DamagedDumpError, MissingFileError, UsageError

MOST = 256 << 20  # bytes of a document
_LOOPBACK = {"127.0.0.1": "127.0.0.1", "localhost": "127.0.0.1", "::1": "::1"}
_SOCKET = "unix:"
_PATH = re.compile(r"/?(?:([\w-]{16,})/?)?(?:json)?")  # with a token before the page
_PATIENCE = 10.0  # seconds without a byte
_IN_ALL = 60.0
_CHUNK = 1 << 20
_FORM = "http://127.0.0.1:PORT/TOKEN/, as `shadowgraph wrap --status` prints it and run.json has it"


class _Place(NamedTuple):
    """Address of a status server: a port, or a socket in the file system."""

    host: str
    port: int
    socket: str = ""
    token: str = ""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_PATIENCE)
        self.sock.connect(self._path)


def is_url(text: str) -> bool:
    """Whether an argument names a server and no file."""
    return "://" in text or text.startswith(_SOCKET)


def shown(url: str) -> str:
    """An address to print and save: without its token."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return tame(url)
    tokens = {*parse_qs(parts.query).get("token", ()), *re.findall(r"[\w-]{16,}", parts.path)} if parts.netloc else ()
    for token in tokens:
        url = url.replace(token, "...")
    return tame(url)


def fetched(url: str) -> bytes:
    """The JSON of a status server at ``http://127.0.0.1:PORT/TOKEN/`` or ``unix:PATH``.

    Raises
    ------
    UsageError
        For another scheme, another machine, no port, or another page than the JSON.
    MissingFileError
        When the server does not answer, or refuses.
    DamagedDumpError
        When the response does not end.
    """
    place = _place(url)
    connection = (
        _UnixConnection(place.socket)
        if place.socket
        else http.client.HTTPConnection(place.host, place.port, timeout=_PATIENCE)
    )
    headers = {"Host": f"127.0.0.1:{place.port}", "Accept": "application/json"}
    if place.token:
        headers["Authorization"] = f"Bearer {place.token}"
    try:
        connection.request("GET", "/json", headers=headers)
        answer = connection.getresponse()
        if answer.status != 200:
            said = tame(answer.read(300).decode("utf-8", "replace").split("\n", 1)[0])
            raise MissingFileError(f"cannot read {shown(url)}: {answer.status} {said}")
        return _whole(answer, url)
    except (OSError, http.client.HTTPException) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or tame(str(error)) or type(error).__name__
        raise MissingFileError(
            f"cannot read {shown(url)}: {said}; is it what `shadowgraph wrap --status` named, and does the run go on?"
        ) from None
    finally:
        connection.close()


def _place(url: str) -> _Place:
    if url.startswith(_SOCKET) and "://" not in url:
        return _Place("localhost", 0, url.removeprefix(_SOCKET))
    return _http_place(url)


def _http_place(url: str) -> _Place:
    parts, host, port = _split(url)
    if parts.scheme != "http" or host not in _LOOPBACK or parts.username is not None:
        raise UsageError(
            f"only a status server of this machine is asked, as {_FORM}, not {shown(url)}; of another machine take its "
            "run folder, or save its JSON and name the file"
        )
    path, query = _PATH.fullmatch(parts.path), parse_qs(parts.query)
    if port is None or path is None or query.keys() - {"token"} or parts.fragment:
        raise UsageError(f"{shown(url)} is not where a status server has its JSON; use {_FORM}")
    return _Place(_LOOPBACK[host], port, token=path[1] or next(iter(query.get("token", ())), ""))


def _split(url: str) -> tuple[SplitResult, str, int | None]:
    """The parts of an address, with its host and its port."""
    try:
        parts = urlsplit(url)
        return parts, parts.hostname or "", parts.port
    except ValueError as error:
        raise UsageError(f"{shown(url)} is no address: {error}") from None


def _whole(answer: http.client.HTTPResponse, url: str) -> bytes:
    deadline, parts, total = time.monotonic() + _IN_ALL, [], 0
    while chunk := answer.read(_CHUNK):
        parts.append(chunk)
        total += len(chunk)
        if total > MOST or time.monotonic() > deadline:
            raise DamagedDumpError(f"{shown(url)} gives no document: it does not end")
    return b"".join(parts)
