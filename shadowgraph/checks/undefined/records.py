"""Records of an experiment of SG107: what is compared, and what was found. Pure data, without names."""

from __future__ import annotations

from dataclasses import dataclass, field

from shadowgraph.checks.undefined.fills import Filled
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Reader
from shadowgraph.model.probes import Search
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.reruns import Load


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """Bytes of a result that the program reads.

    Attributes
    ----------
    reader
        None while it was not seen to read them.
    sure
        Whether it is known to read them.
    """

    buffer: Buffer
    where: ByteRange
    dtype: str
    itemsize: int
    reader: Reader | None
    sure: bool


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Bytes in which a node's results are looked for."""

    where: ByteRange
    dtype: str
    itemsize: int


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """A result that depends on bytes that must not matter.

    Attributes
    ----------
    differing
        Its bytes that differ.
    computed
        Whether a node computed them; else they are the undefined bytes themselves.
    values
        The first element that differs, under each fill.
    infinite
        Whether every element that differs is an infinity or a NaN in one of the runs.
    """

    output: Output
    differing: RangeSet
    computed: bool
    values: tuple[str, str]
    infinite: bool


@dataclass(frozen=True, slots=True, eq=False)
class Influence:
    """Bytes that matter and must not.

    Attributes
    ----------
    where
        From the first to the last of them.
    effects
        The results that depend on them, those that are computed and surely read first.
    fills
        The two fills.
    node, search
        Index of the first node whose results differ, where it is known, and how it was found where nodes could not be
        looked at one by one.
    """

    filled: Filled
    where: ByteRange
    effects: tuple[Effect, ...]
    fills: tuple[str, str]
    node: int | None
    search: Search | None
    loads: tuple[Load, ...]


@dataclass(slots=True)
class Trial:
    """The result of an experiment.

    Attributes
    ----------
    unsteady
        Results that two equal runs gave different values, and the first node of which.
    runs
        Runs of the graph.
    overflows
        Dependences left out that only large values show.
    """

    influences: list[Influence] = field(default_factory=list)
    unsteady: list[tuple[Output, int | None]] = field(default_factory=list)
    runs: int = 0
    overflows: int = 0
