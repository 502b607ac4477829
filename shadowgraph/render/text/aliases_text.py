"""Alias groups as text and JSON: the widest owner first, then the relation of each other owner to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from shadowgraph.common.words import form, plural
from shadowgraph.render.text.shown import Reporter, cut, said
from shadowgraph.views.alias_list import AliasGroup, AliasOwner

SCHEMA = "shadowgraph.aliases/1"
_OWNERS = 12  # owners of a group on a terminal


class AliasesReport(Reporter):
    """Groups of owners that share bytes. Holds data only.

    Parameters
    ----------
    about
        The requested buffer, if any.
    """

    schema = SCHEMA

    def __init__(self, groups: Sequence[AliasGroup], about: str | None = None) -> None:
        self.groups, self.about = tuple(groups), about

    def document(self) -> dict[str, Any]:
        return {"groups": self.groups}

    def lines(self, width: int | None = None) -> Iterator[Text]:
        """Every line; on a terminal each group is cut to its first owners."""
        for group in self.groups:
            chief = group.owners[0]
            yield said(
                f"{chief.path}  {form(chief.dtype, chief.shape)}  {plural(chief.last + 1, 'byte')} at "
                f"{group.address - min(owner.first for owner in group.owners):#x} of process {group.pid}",
                "bold",
            )
            others = (said(f"  {_other(owner, chief)}") for owner in group.owners[1:])
            yield from others if width is None else cut(others, _OWNERS, "owners")
        owners = sum(len(group.owners) for group in self.groups)
        about = f" with {self.about}" if self.about is not None else ""
        if not self.groups:
            yield said(f"no two owners share bytes{about}, as far as they have names")
        else:
            yield said(f"{plural(owners, 'owner')} in {plural(len(self.groups), 'group')} that share bytes{about}")


def _other(owner: AliasOwner, chief: AliasOwner) -> str:
    where = f"bytes {owner.first:,} to {owner.last:,}"
    if owner.relation is None:
        what = "beside it, joined by another owner"
    else:
        joined = owner.relation if not owner.relation or owner.relation[0] in "[." else f" {owner.relation}"
        what = f"is {chief.path}{joined}"
    return f"{owner.path}  {form(owner.dtype, owner.shape)}  {where}  {what}"
