"""What a compiled Triton kernel does with its pointer arguments, and whether it waits for the kernel before it.

Read from the text of Triton's own intermediate code and of the PTX. Pure functions of text; any thread. Whatever is not
understood is unknown: the caller then assumes nothing of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

_NAME = re.compile(r"%[\w$.-]+(?:#\d+)?")
_LINE = re.compile(r"^(?:(%[\w$.-]+(?::\d+)?)\s*=\s*)?\"?([a-z_]+\.[\w.]+)\"?(.*)$")
_ARGUMENT = re.compile(r"(%[\w$.-]+): (!tt\.\w+<|\w+)")
_INITIAL = re.compile(r"(%[\w$.-]+) = (%[\w$.-]+(?:#\d+)?)")
_HEADER = re.compile(r"\^(bb\d+)(?:\((.*)\))?\s*:")
_PARAMETER = re.compile(r"(%[\w$.-]+):")
_TARGET = re.compile(r"\^(bb\d+)(?:\(([^)]*)\))?")
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_LOCATION = re.compile(r'^((?:[^"]|"(?:[^"\\]|\\.)*")*?)\sloc\(.*$')  # outside of texts
_LOADS = {"tt.load", "tt.descriptor_load", "tt.descriptor_gather", "tt.experimental_descriptor_load"}
_STORES = {"tt.store", "tt.descriptor_store", "tt.descriptor_scatter", "tt.experimental_descriptor_store"}
_ATOMICS = {"tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_reduce"}
_REGIONS = {"scf.for", "scf.while", "scf.if"}
_BRANCHES = {"cf.br", "cf.cond_br"}
_ROUNDS = 16
_SUMS = {"tt.addptr", "arith.addi", "arith.subi", "tt.advance", "arith.ori", "arith.xori"}
# Operations that compute and do nothing else; an operation that is none of these may do anything with its operands.
_PURE = re.compile(
    r"(arith|math)\.|ub\.poison|tt\.(addptr|advance|splat|broadcast|expand_dims|reshape|trans|bitcast|fp_to_fp|cat|join|"
    r"split|unsplat|dot\w*|reduce|scan|gather|histogram|make_range|make_tensor_ptr|make_tensor_descriptor|"
    r"get_program_id|get_num_programs|clampf|precise_\w+|mulhiui|int_to_ptr|ptr_to_int|mem_desc\w*)$"
)
_QUIET = {
    "tt.return", "tt.reduce.return", "tt.scan.return", "tt.assert", "tt.print", "tt.func",
    "gpu.barrier", "llvm.intr.assume",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Use:
    """A kernel's accesses through one pointer argument.

    Attributes
    ----------
    loads, stores
        Whether it may load or store through the pointer.
    whole
        Whether the addresses depend on nothing but the position in the grid, loops and factors: on no loaded value, and
        on no offset that was given as an argument. Such a kernel is likely to cover all that it was given.
    """

    loads: bool = False
    stores: bool = False
    whole: bool = True


@dataclass(frozen=True, slots=True)
class _Value:
    """What is known of a value: the pointer arguments that it may stem from, whether it stems from a loaded value, from
    the kernel's numbers alone (`fixed`), whether such a number was added (`shifted`), and whether it may be an address
    that stems from no argument (`foreign`)."""

    roots: frozenset[str] = frozenset()
    loaded: bool = False
    fixed: bool = False
    varies: bool = False
    shifted: bool = False
    foreign: bool = False

    def __or__(self, other: _Value) -> _Value:
        """What is computed of both."""
        return _Value(
            self.roots | other.roots,
            self.loaded or other.loaded,
            self.fixed or other.fixed,
            self.varies or other.varies,
            self.shifted or other.shifted,
            self.foreign or other.foreign,
        )

    def merged(self, other: _Value) -> _Value:
        """What is one or the other: an offset that may be a number of the launch counts as such a number."""
        found = self | other
        return found if self.given is other.given else replace(found, shifted=True)

    @property
    def given(self) -> bool:
        """Whether it is a number that the launch gives, the same for every element."""
        return self.fixed and not self.varies and not self.roots


class KernelTextError(ValueError):
    """The intermediate code holds something that is not understood."""


@dataclass(slots=True)
class _Region:
    """A loop or a branch: its results, the values that its body carries on, and whether a loaded value decides; of a
    while loop also the values that its condition hands to its body."""

    results: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    loaded: bool = False
    handed: tuple[_Value, ...] = ()


@dataclass(slots=True)
class _Reading:
    """One function's text, read until nothing changes.

    Attributes
    ----------
    blocks
        Names of the parameters of each block but the first, by its label.
    decided
        Whether a loaded value decides which of the blocks run.
    """

    values: dict[str, _Value] = field(default_factory=dict)
    uses: dict[str, Use] = field(default_factory=dict)
    blocks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    decided: bool = False
    changed: bool = False

    def value(self, name: str) -> _Value:
        return self.values.get(name) or _Value()

    def put(self, name: str, value: _Value) -> None:
        before = self.values.get(name)
        after = before.merged(value) if before is not None else value
        if after != before:
            self.values[name], self.changed = after, True

    def use(self, pointer: _Value, *, loads: bool, stores: bool) -> None:
        whole = not (pointer.loaded or pointer.shifted)
        for root in pointer.roots:
            known = self.uses.get(root, Use())
            self.uses[root] = Use(known.loads or loads, known.stores or stores, known.whole and whole)


def uses_of(ttir: str, names: Sequence[str]) -> dict[str, Use]:
    """The use of each pointer argument of a kernel, by the argument's name.

    Parameters
    ----------
    names
        The names of all arguments of the compiled function, in order.

    Raises
    ------
    KernelTextError
        Where the text is not understood.
    """
    raw = [line.strip() for line in ttir.splitlines()]
    functions = [place for place, line in enumerate(raw) if line.startswith("tt.func ")]
    entries = [place for place in functions if " public " in raw[place]]
    if len(entries) != 1:
        raise KernelTextError("not one kernel")
    start = entries[0]
    stop = next((place for place in functions if place > start), len(raw))
    # The header of a block has a location behind each parameter.
    lines = [line if line.startswith("^") else _LOCATION.sub(r"\1", line).rstrip() for line in raw[start + 1 : stop]]
    reading = _Reading(blocks=dict(map(_header, filter(_is_block, lines))))
    arguments = _ARGUMENT.findall(raw[start])
    if len(arguments) != len(names):
        raise KernelTextError("other arguments than it was given")
    for argument, (name, kind) in zip(names, arguments, strict=True):
        if kind.startswith("!tt"):
            reading.uses[argument] = Use()
            reading.values[name] = _Value(roots=frozenset((argument,)))
        else:
            reading.values[name] = _Value(fixed=True)
    for _ in range(_ROUNDS):  # a round for each step that a loop carries on
        reading.changed = False
        _read(reading, lines)
        if not reading.changed:
            return reading.uses
    raise KernelTextError("it does not settle")


def _is_block(line: str) -> bool:
    """Whether a line is the header of a block of the function itself: an early return, above all, parts it in blocks.
    The only block of a loop's or a reduction's body is called bb0."""
    return line.startswith("^") and not line.startswith("^bb0(")


def _header(line: str) -> tuple[str, tuple[str, ...]]:
    """The label of a block, and the names of its parameters."""
    found = _HEADER.match(line)
    if found is None:
        raise KernelTextError("a block without a label")
    return found[1], tuple(_PARAMETER.findall(found[2] or ""))


def _read(reading: _Reading, lines: list[str]) -> None:
    regions: list[_Region] = [_Region()]  # the innermost last; the first one is the function
    for line in lines:
        if line.startswith("}"):
            ended = regions.pop() if regions else _Region()
            if line.endswith("{"):  # the other branch, or the body of a loop behind its condition
                regions.append(ended)
        elif line.startswith("^"):
            _begin_block(reading, regions, line)
        else:
            region = _statement(reading, regions, line)
            if line.endswith("{"):
                regions.append(region)


def _begin_block(reading: _Reading, regions: list[_Region], line: str) -> None:
    """The header of a block: of the function itself, or of the body of a while loop or of a reduction."""
    if not _is_block(line):
        for name, value in zip(_header(line)[1], regions[-1].handed if regions else (), strict=False):
            reading.put(name, value)
    elif len(regions) == 1:
        regions[0] = _Region(loaded=reading.decided)
    else:
        raise KernelTextError("branches between blocks of a loop")


def _statement(reading: _Reading, regions: list[_Region], line: str) -> _Region:
    """An operation; returns the region that it opens, if it does."""
    within = bool(regions) and regions[-1].loaded
    found = _LINE.match(line)
    if found is None:
        return _Region(loaded=within)
    results, name, rest = _results(found[1]), found[2], found[3]
    if name in _REGIONS:
        return _entered(reading, results, name, rest, within)
    if name.startswith("cf."):
        _branch(reading, name, rest, within)
    elif name == "scf.yield":
        _leave(reading, regions, _operands(reading, rest, within))
    elif name == "scf.condition":
        _hand_over(reading, regions, _operands(reading, rest, within))
    else:
        _operation(reading, results, name, _TEXT.sub("", rest), within)
    return _Region(loaded=within)


def _operands(reading: _Reading, rest: str, within: bool) -> list[_Value]:
    """The operands of an operation; in a region that a loaded value decides on, they count as loaded."""
    operands = [reading.value(operand) for operand in _NAME.findall(rest)]
    return [replace(operand, loaded=True) for operand in operands] if within else operands


def _branch(reading: _Reading, name: str, rest: str, within: bool) -> None:
    """A jump to other blocks, which gives them values."""
    if name not in _BRANCHES:
        raise KernelTextError("a branch of another kind")
    if name == "cf.cond_br":
        condition = reading.value(_NAME.findall(rest)[0])
        if (condition.loaded or within) and not reading.decided:
            reading.decided = reading.changed = True
    for label, given in _TARGET.findall(rest):
        names, values = reading.blocks.get(label), _NAME.findall(given)
        if names is None or len(names) != len(values):
            raise KernelTextError("a branch to no block")
        for each, value in zip(names, values, strict=True):
            reading.put(each, reading.value(value))


def _operation(reading: _Reading, results: tuple[str, ...], name: str, rest: str, within: bool) -> None:
    operands = _operands(reading, rest, within)
    if name in _LOADS | _STORES | _ATOMICS:
        _access(reading, results, name, rest, operands)
    elif name not in _QUIET:
        value = _computed(name, operands)
        if not _PURE.match(name):  # it may do anything with what it is given
            if _hides_addresses(rest, operands):
                raise KernelTextError("numbers that may be addresses, in other code")
            value = replace(value, loaded=True)
            for operand in operands:
                reading.use(replace(operand, loaded=True), loads=True, stores=True)
        for each in results:
            reading.put(each, value)


def _hides_addresses(rest: str, operands: list[_Value]) -> bool:
    """Whether other code, a function or assembly, is given addresses that stem from no argument, or numbers that are as
    wide as one. Assembly that is said to be pure touches no memory."""
    types = rest.rpartition(" : ")[2].partition(" -> ")[0]
    wide = "i64" in types and "pure = true" not in rest and any(not operand.roots for operand in operands)
    return wide or "!tt.ptr<!tt.ptr" in rest or any(operand.foreign for operand in operands)


def _access(reading: _Reading, results: tuple[str, ...], name: str, rest: str, operands: list[_Value]) -> None:
    if "!tt.ptr<!tt.ptr" in rest:
        raise KernelTextError("pointers in memory")
    if not operands:
        raise KernelTextError("an access without a pointer")
    pointer, *others = operands
    if name not in _LOADS and (not pointer.roots or pointer.foreign):
        raise KernelTextError("a store to an address that stems from no argument")
    if name.startswith("tt.descriptor") or "experimental_descriptor" in name:
        beside = others if name in _LOADS else others[:-1]  # the places in it, not the stored value
        if any(each.given or each.shifted for each in beside):
            pointer = replace(pointer, shifted=True)
    else:
        beside = others[1:] if name in _STORES else others  # the mask, not the stored value
    if _joined(beside).loaded:
        pointer = replace(pointer, loaded=True)
    reading.use(pointer, loads=name not in _STORES, stores=name not in _LOADS)
    for each in results:
        reading.put(each, _Value(loaded=True))


def _results(result: str | None) -> tuple[str, ...]:
    if result is None:
        return ()
    name, _, count = result.partition(":")
    return tuple(f"{name}#{place}" for place in range(int(count))) if count else (name,)


def _joined(values: list[_Value]) -> _Value:
    found = _Value()
    for value in values:
        found |= value
    return found


def _computed(name: str, operands: list[_Value]) -> _Value:
    if name in ("tt.get_program_id", "tt.make_range"):
        return _Value(varies=True)
    value = _joined(operands)
    chosen = operands[-2:] if name == "arith.select" else []
    if name in _SUMS and any(operand.given for operand in operands):
        value = replace(value, shifted=True)
    if len(chosen) == 2 and chosen[0].given is not chosen[1].given:
        value = replace(value, shifted=True)
    if name == "tt.int_to_ptr" and not value.roots:
        value = replace(value, foreign=True)
    return value


def _entered(reading: _Reading, results: tuple[str, ...], name: str, rest: str, within: bool) -> _Region:
    """The region of a loop or a branch."""
    head, _, tail = ("", "", rest) if name == "scf.while" else rest.partition(" iter_args(")
    loaded = within or any(reading.value(operand).loaded for operand in _NAME.findall(head))
    if name == "scf.for":
        (variable, first), *_ = _INITIAL.findall(head)
        begin = reading.value(first)
        reading.put(variable, _Value(varies=True, loaded=loaded, shifted=begin.given or begin.shifted))
    carried = []
    for inner, initial in _INITIAL.findall(tail):
        carried.append(inner)
        reading.put(inner, reading.value(initial))
    if name == "scf.while":  # its results are what its condition hands over
        return _Region(results, tuple(carried), loaded)
    for each, inner in zip(results, carried, strict=False):
        reading.put(each, reading.value(inner))
    return _Region(results, tuple(carried), loaded)


def _leave(reading: _Reading, regions: list[_Region], operands: list[_Value]) -> None:
    for names in (regions[-1].results, regions[-1].carried) if regions else ():
        for name, value in zip(names, operands, strict=False):
            reading.put(name, value)


def _hand_over(reading: _Reading, regions: list[_Region], operands: list[_Value]) -> None:
    """The condition of a while loop: its values go to the loop's body, and in the end to its results. The number of
    iterations is not known; where a loaded value decides on it, all of them count as loaded."""
    if not regions or not operands:
        raise KernelTextError("a condition without a loop")
    condition, *values = operands
    loop = regions[-1]
    loop.loaded = loop.loaded or condition.loaded
    loop.handed = tuple(
        replace(value, varies=True, loaded=value.loaded or loop.loaded, shifted=value.shifted or value.given)
        for value in values
    )
    for name, value in zip(loop.results, loop.handed, strict=False):
        reading.put(name, value)


class KernelCode:
    """The facts of one compiled kernel, read when first asked for.

    Parameters
    ----------
    text
        Returns the kernel's code by stage (``"ttir"``, ``"ptx"``), or None where it is gone.
    names
        The names of the function's arguments, in order.
    """

    __slots__ = ("_names", "_text", "_uses", "_waits")

    def __init__(self, text: Callable[[], Mapping[str, str | bytes] | None], names: tuple[str, ...]) -> None:
        self._text, self._names = text, names
        self._uses: dict[str, Use] | bool | None = False
        self._waits: tuple[bool, bool] | bool | None = False

    def _stage(self, stage: str) -> str | None:
        found = (self._text() or {}).get(stage)
        return found if isinstance(found, str) else None

    def use(self, argument: str) -> Use | None:
        """What the kernel does with an argument, or None where that is not known."""
        if isinstance(self._uses, bool):
            self._uses = self._read_uses()
        return self._uses.get(argument) if self._uses is not None else None

    def _read_uses(self) -> dict[str, Use] | None:
        text = self._stage("ttir")
        try:
            return uses_of(text, self._names) if text is not None else None
        except (ValueError, IndexError):
            return None

    @property
    def waits(self) -> bool | None:
        """Whether the kernel waits for the kernels that it may start before the end of (``griddepcontrol.wait``); None
        where that is not known."""
        return self._dependency_control[0] if self._dependency_control is not None else None

    @property
    def releases(self) -> bool | None:
        """Whether the kernel lets dependent kernels start before its end (``griddepcontrol.launch_dependents``); None
        where that is not known."""
        return self._dependency_control[1] if self._dependency_control is not None else None

    @property
    def _dependency_control(self) -> tuple[bool, bool] | None:
        if isinstance(self._waits, bool):
            text = self._stage("ptx")
            self._waits = None
            if text is not None:
                self._waits = "griddepcontrol.wait" in text, "griddepcontrol.launch_dependents" in text
        return self._waits
