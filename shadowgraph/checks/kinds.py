"""The kinds of finding, a line each. They are registered when this is imported; any thread may ask.

A new kind is a folder beside this file, with a `FindingKind`, and a line below.
"""

from __future__ import annotations

from typing import cast

from shadowgraph.checks.contents_lost.kind import ContentsLostKind
from shadowgraph.checks.dangling.kind import DanglingPointerKind
from shadowgraph.checks.foreign_writes.kind import ForeignWriteKind
from shadowgraph.checks.headroom.kind import HeadroomKind
from shadowgraph.checks.host_source.kind import HostSourceKind
from shadowgraph.checks.host_write.kind import HostWriteKind
from shadowgraph.checks.invariants.kind import InvariantKind
from shadowgraph.checks.kind import FindingKind
from shadowgraph.checks.lost_preparation.kind import LostPreparationKind
from shadowgraph.checks.mutation.kind import InGraphMutationKind
from shadowgraph.checks.out_of_bounds.kind import OutOfBoundsKind
from shadowgraph.checks.pool_clobber.kind import PoolClobberKind
from shadowgraph.checks.races.kind import GraphRaceKind
from shadowgraph.checks.rebound.kind import ReboundInputKind
from shadowgraph.checks.stale_rows.kind import StaleRowsKind
from shadowgraph.checks.undefined.kind import UndefinedInfluenceKind
from shadowgraph.checks.unordered_access.kind import UnorderedAccessKind
from shadowgraph.common.errors import UsageError
from shadowgraph.common.suggestions import did_you_mean
from shadowgraph.model import kinds as register

BUILT_IN: tuple[FindingKind, ...] = (  # in the order in which their checks run
    OutOfBoundsKind(),
    InGraphMutationKind(),
    InvariantKind(),
    DanglingPointerKind(),
    PoolClobberKind(),
    StaleRowsKind(),
    ReboundInputKind(),
    LostPreparationKind(),
    GraphRaceKind(),
    ForeignWriteKind(),
    HostSourceKind(),
    HostWriteKind(),
    HeadroomKind(),
    UnorderedAccessKind(),
    ContentsLostKind(),
    UndefinedInfluenceKind(),
)


def kinds() -> tuple[FindingKind, ...]:
    """All kinds that this process knows, by code."""
    return cast("tuple[FindingKind, ...]", register.kinds())


def kind_of(code: str) -> FindingKind:
    """The kind of a finding's code; see `shadowgraph.model.kinds.kind_of`."""
    return cast("FindingKind", register.kind_of(code))


def titles() -> dict[str, str]:
    """Title by code."""
    known = {kind.code: kind.title for kind in kinds()}
    return {code: known[code] for code in sorted(known)}


def known_code(text: str) -> str:
    """The code for ``sg101``, ``101``, or a kind's title.

    Raises
    ------
    UsageError
        When there is none.
    """
    wanted = text.strip().casefold()
    for code, title in titles().items():
        if wanted in (code.casefold(), code[2:], title):
            return code
    near = did_you_mean(text, (*titles(), *titles().values()))
    raise UsageError(f"no kind of finding is called {text!r}{near}; kinds are: {', '.join(titles())}")


for _kind in BUILT_IN:
    register.register(_kind)
