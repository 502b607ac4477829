"""Register of the kinds of finding, by code: what a finding needs of its kind to be read, written and fingerprinted.

Filled once, by `shadowgraph.checks.kinds` when a kind is first asked for; read from any thread. No torch and no lock.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import msgspec

from shadowgraph.common import late_kinds

TAG = "code"  # the field by which a detail in JSON says of which kind it is


class Detail:
    """Facts of one kind of finding. Subclasses are frozen msgspec structs with the kind's code as their tag::

    class RuleDetail(Detail, msgspec.Struct, frozen=True, tag=CODE, tag_field=TAG): ...
    """

    __slots__ = ()


class Kind(Protocol):
    """A kind of finding, as far as its records go; `shadowgraph.checks.kind.FindingKind` is the whole of it.

    Attributes
    ----------
    detail
        Type of its facts; None for a kind that has none beside those of every finding.

    The methods take a `shadowgraph.model.findings.Finding`, which is made of what stands here.
    """

    code: ClassVar[str]
    title: ClassVar[str]
    detail: type[Detail] | None

    def message(self, finding: Any) -> str:
        """The finding in one line."""

    def cause(self, finding: Any) -> str:
        """What tells findings apart that differ in nothing else of their fingerprint."""


_kinds: dict[str, Kind] = {}


def register(kind: Kind) -> None:
    """Make a kind known; one of the same code is replaced."""
    _kinds[kind.code] = kind


def unregister(code: str) -> None:
    """Forget a kind."""
    del _kinds[code]


def kind_of(code: str) -> Kind:
    """The kind of a code.

    Raises
    ------
    ValueError
        When there is none: the finding is of another version.
    """
    if code not in _known():
        raise ValueError(f"no kind of finding has the code {code!r}")
    return _kinds[code]


def kinds() -> tuple[Kind, ...]:
    """All kinds, by code."""
    return tuple(_known()[code] for code in sorted(_known()))


def _known() -> dict[str, Kind]:
    late_kinds.register()  # no more than a look-up once they are there
    return _kinds


def decode_detail(wanted: type, value: Any) -> Any:
    """`dec_hook` of msgspec: the detail of a finding, by its tag.

    Raises
    ------
    ValueError, NotImplementedError
        For a tag of no kind with facts of its own, and for another type.
    """
    if wanted is not Detail:
        raise NotImplementedError(f"cannot decode {wanted}")
    detail = kind_of(str(value.get(TAG)) if isinstance(value, dict) else "").detail
    if detail is None:
        raise ValueError("a detail of a kind that has none")
    return msgspec.convert(value, detail)
