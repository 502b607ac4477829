"""What redaction does with a field, told by the field's type: whatever is not marked is dropped.

`shadowgraph.dumps.redaction` reads the marks. A text, number or byte string may be a value of the program's memory, a
token or a prompt, unless its type says otherwise; closed sets (enumerations, booleans) are kept, records are entered.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, TypeVar

import msgspec

MARK = "redaction"  # key of a field's mark in `msgspec.Meta.extra`
_T = TypeVar("_T")
_KEY = re.compile(r"""\[((?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\]"'])*)\]""")
# Kept are identifiers, and numbers of one or two digits, which are positions in short lists.
_PLAIN = re.compile(r"""\d\d?|"[A-Za-z_]\w{0,39}"|[A-Za-z_][\w.]*|<\w+ \#\d+>""")
_ALLOCATION = re.compile(r"\w+\[[\d, ]*\] (?:from|at) ")  # an unowned buffer: dtype, shape and line


class Redaction(StrEnum):
    """What becomes of a marked value."""

    KEEP = "keep"  # geometry, source places, identifiers of ours
    PATH = "path"  # an owner path, without keys that may be tokens or text
    KERNEL = "kernel"  # a kernel's name, without the value of a memset
    RULE = "rule"  # a rule's name, without the values that break it
    FAULT = "fault"  # place and class of an internal error, without the exception's message


Kept = Annotated[_T, msgspec.Meta(extra={MARK: Redaction.KEEP})]
OwnerPath = Annotated[str, msgspec.Meta(extra={MARK: Redaction.PATH})]
KernelName = Annotated[str, msgspec.Meta(extra={MARK: Redaction.KERNEL})]
RuleText = Annotated[str, msgspec.Meta(extra={MARK: Redaction.RULE})]
FaultText = Annotated[str, msgspec.Meta(extra={MARK: Redaction.FAULT})]


def hidden(path: str) -> str:
    """An owner path without keys that may be tokens or text: ``cache[...].value``."""
    if _ALLOCATION.match(path):
        return path
    return _KEY.sub(lambda key: key[0] if _PLAIN.fullmatch(key[1]) else "[...]", path)
