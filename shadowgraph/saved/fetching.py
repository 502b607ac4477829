"""Asks a status server of this machine for its JSON. Nobody else is asked."""

from __future__ import annotations

import http.client
import time
from urllib.parse import SplitResult, urlsplit

from shadowgraph.errors import DamagedDumpError, MissingFileError, UsageError
from shadowgraph.reports.console import tame

MOST = 256 << 20  # bytes of a document
_LOOPBACK = {"127.0.0.1": "127.0.0.1", "localhost": "127.0.0.1", "::1": "::1"}
_PATIENCE = 10.0  # seconds without a byte
_IN_ALL = 60.0
_CHUNK = 1 << 20


def is_url(text: str) -> bool:
    """Whether somebody means a server and no file."""
    return "://" in text


def fetched(url: str) -> bytes:
    """The JSON of a status server, as ``http://127.0.0.1:PORT`` names it.

    Raises
    ------
    UsageError
        For another scheme, another machine, no port, or another page than the JSON.
    MissingFileError
        When nobody answers there, or with a refusal.
    DamagedDumpError
        When the answer does not end.
    """
    host, port = _place(url)
    connection = http.client.HTTPConnection(host, port, timeout=_PATIENCE)
    try:
        connection.request("GET", "/json", headers={"Host": f"127.0.0.1:{port}", "Accept": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            said = tame(answer.read(300).decode("utf-8", "replace").split("\n", 1)[0])
            raise MissingFileError(f"cannot read {url}: {answer.status} {said}")
        return _whole(answer, url)
    except (OSError, http.client.HTTPException) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or tame(str(error)) or type(error).__name__
        raise MissingFileError(
            f"cannot read {url}: {said}; is it the port that `shadowgraph wrap --status` named, and does the run go on?"
        ) from None
    finally:
        connection.close()


def _place(url: str) -> tuple[str, int]:
    try:
        parts: SplitResult = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UsageError(f"{tame(url)} is no address: {error}") from None
    if parts.scheme != "http" or host not in _LOOPBACK or parts.username is not None:
        raise UsageError(
            f"only a status server of this machine is asked, as http://127.0.0.1:PORT, not {tame(url)}; of another "
            "machine take its run folder, or save its JSON and name the file"
        )
    if port is None or parts.path not in ("", "/", "/json") or parts.query or parts.fragment:
        raise UsageError(f"{tame(url)} is not where a status server has its JSON; use http://127.0.0.1:PORT")
    return _LOOPBACK[host], port


def _whole(answer: http.client.HTTPResponse, url: str) -> bytes:
    deadline, parts, total = time.monotonic() + _IN_ALL, [], 0
    while chunk := answer.read(_CHUNK):
        parts.append(chunk)
        total += len(chunk)
        if total > MOST or time.monotonic() > deadline:
            raise DamagedDumpError(f"{url} gives no document: it does not end")
    return b"".join(parts)
