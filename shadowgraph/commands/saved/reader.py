"""Reader of saved documents: from a file, or from a status server."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shadowgraph.commands.saved.fetching import MOST, fetched, is_url, shown
from shadowgraph.common.console import tame
from shadowgraph.common.errors import (
    DamagedDumpError,
    ForeignFileError,
    MissingFileError,
    NewerDumpError,
    OlderDumpError,
    ShadowgraphError,
)
from shadowgraph.dumps.container import first_words
from shadowgraph.model.kinds import decode_detail
from shadowgraph.model.run_facts import SCHEMA, RunFacts

T = TypeVar("T")

_OURS = "shadowgraph."
_PROBE = 64  # bytes that tell whether a file is text


@dataclass(frozen=True, slots=True)
class Saved:
    """A shadowgraph document.

    Attributes
    ----------
    source
        The file or address as the user named it.
    schema
        Such as ``shadowgraph.report/2``.
    document
        The decoded JSON.
    text
        Its bytes.
    """

    source: str
    schema: str
    document: dict[str, Any]
    text: bytes

    @property
    def is_report(self) -> bool:
        return self.schema == SCHEMA

    def facts(self) -> RunFacts:
        """The facts of a report.

        Raises
        ------
        ForeignFileError
            When it is the document of another verb.
        DamagedDumpError
        """
        self.require(SCHEMA)
        return self.decoded(RunFacts)

    def decoded(self, kind: type[T]) -> T:
        """The document as typed data; further fields are left out.

        Raises
        ------
        DamagedDumpError
        """
        with _damaged(self.source):
            return msgspec.json.decode(self.text, type=kind, dec_hook=decode_detail)

    def require(self, schema: str) -> None:
        """Refuse the document of another verb, and a later one of the same.

        Raises
        ------
        ForeignFileError, NewerDumpError
        """
        if self.schema == schema:
            return
        name, _, number = self.schema.partition("/")
        wanted = schema.partition("/")[0]
        if name == wanted and re.fullmatch("[1-9][0-9]{0,8}", number):
            if int(number) < int(schema.partition("/")[2]):
                raise OlderDumpError(
                    f"{self.source} is of schema {self.schema}, this shadowgraph reads {schema}: "
                    "read it with the shadowgraph that wrote it"
                )
            raise NewerDumpError(
                f"{self.source} is of schema {self.schema}, this shadowgraph reads up to {schema}: upgrade shadowgraph"
            )
        verb = wanted.removeprefix(_OURS)
        raise ForeignFileError(
            f"{self.source} holds {tame(self.schema)}, and this verb reads {schema}, as `{verb} --json` prints it"
        )


def is_saved(path: str) -> bool:
    """Whether a path means a document: a server, a ``.json`` file, or a file that begins like one."""
    if is_url(path):
        return True
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        if Path(path).suffix.lower() == ".json":
            return True
        with open(path, "rb") as file:
            head = file.read(_PROBE)
    except (OSError, ValueError):
        return False  # the error is raised when the file is opened
    return head.lstrip()[:1] in (b"{", b"[") and b"\0" not in head  # a dump begins with a number of eight bytes


def read_saved(path: str) -> Saved:
    """Read a document, and check that it is one of shadowgraph's.

    Raises
    ------
    MissingFileError
        When it cannot be read.
    ForeignFileError
        When it is another kind of file, or empty.
    DamagedDumpError
        When it was cut or changed.
    UsageError
        For a server on another machine.
    """
    source = shown(path) if is_url(path) else tame(path)
    text = fetched(path) if is_url(path) else _file(path)
    if not text.strip():
        raise ForeignFileError(f"{source} is empty, and so no shadowgraph document")
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if f'"{_OURS}'.encode() in text[:200]:
            raise DamagedDumpError(f"{source} is damaged: no JSON ({first_words(error)})") from None
        raise ForeignFileError(f"{source} is no shadowgraph document, and no JSON") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, str) or not schema.startswith(_OURS):
        raise ForeignFileError(f"{source} is JSON, and no shadowgraph document: it names no schema of ours")
    return Saved(source, schema, document, text)


def _file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            text = file.read(MOST + 1)
    except OSError as error:
        raise MissingFileError(f"cannot read {tame(path)}: {error.strerror}") from None
    if len(text) > MOST:
        raise DamagedDumpError(f"{tame(path)} is larger than any document")
    return text


@contextmanager
def _damaged(source: str) -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, ShadowgraphError, ValueError, TypeError, RecursionError, OverflowError) as error:
        raise DamagedDumpError(f"{source} is damaged: it makes no sense ({tame(first_words(error))})") from None
