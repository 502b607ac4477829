"""Find the operators of torch that compute otherwise under a dispatch mode, and write `mode_sensitive_table.py`.

    python tools/mode_sensitive.py [--samples N] [--only NAME,...] [--print]

Each program of `operator_samples` runs plainly and below a mode that does nothing. Where the bits differ, the overloads
that it calls are taken out of the mode's reach one by one, the outermost first, until no more can be left in it: what
is left goes into the table. Takes some twenty minutes for all of them. Needs `expecttest`.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from operator_samples import Image, Program, op_db, plainly, programs
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parent.parent))
from shadowgraph.graphs.dispatch import mode_sensitive
from shadowgraph.graphs.dispatch.calling import redispatch

TABLE = Path(mode_sensitive.__file__).with_name("mode_sensitive_table.py")
# Arithmetic is handed numbers that take part in type promotion as such; none of it asks for subclasses.
_ARITHMETIC = {
    *("add", "sub", "mul", "div", "rsub", "floor_divide", "pow", "copy"),
    *("add_", "sub_", "mul_", "div_", "floor_divide_", "pow_", "copy_"),
}
_HEAD = '"""Overloads of aten that compute otherwise under a dispatch mode. Written by `tools/mode_sensitive.py`."""'


class Passing(TorchDispatchMode):
    """Does nothing, but is there."""

    steps_aside = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))

    def take_whole(self, func: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)


class Bench:
    """Every overload of aten with a kernel that notes its calls, and treats some as `mode_sensitive` does."""

    def __init__(self) -> None:
        self.called: dict[str, None] = {}
        self.forward: set[str] = set()
        self.backward: set[str] = set()
        self._library = torch.library.Library("aten", "IMPL")
        for name in torch._C._dispatch_get_all_op_names():
            operator = mode_sensitive.overload(name.removeprefix("aten::")) if name.startswith("aten::") else None
            if operator is not None and operator._schema.name.removeprefix("aten::") not in _ARITHMETIC:
                self._register(operator)

    def run(self, program: Program) -> list[Image] | None:
        """What a program makes below a mode; None if it raises."""
        self.called.clear()
        try:
            with Passing():
                return program.run()
        except Exception as error:
            print(f"{program.name}: {type(error).__name__}: {error}"[:300], file=sys.stderr)
            return None

    def _register(self, operator: OpOverload) -> None:
        name = str(operator).removeprefix("aten.").removesuffix(".default")
        whole, hooked = mode_sensitive.whole(operator), mode_sensitive.hooked(operator)
        after = mode_sensitive.below()

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            self.called[name] = None
            if name in self.forward:
                return whole(keys, *args, **kwargs)
            if name in self.backward:
                return hooked(keys, *args, **kwargs)
            return redispatch(operator, keys & after, args, kwargs)

        try:
            self._library.impl(operator, kernel, mode_sensitive.KEY, with_keyset=True)
        except RuntimeError:  # has a kernel of its own there
            print(f"not looked at: {name}", file=sys.stderr)


def needed(bench: Bench, program: Program, plain: list[Image], known: set[str]) -> set[str]:
    """The overloads that must be out of a mode's reach for a program to make what it makes plainly."""
    chosen = bench.backward if program.kind == "backward" else bench.forward
    chosen.clear()
    chosen |= known
    if bench.run(program) == plain:
        return set(known)
    called = list(bench.called)
    chosen |= set(called)
    if bench.run(program) != plain:
        print(f"{program.name}: differs whatever is done", file=sys.stderr)
        chosen.clear()
        return set(known)
    for name in called:
        if name not in known:
            chosen.discard(name)
            if bench.run(program) != plain:
                chosen.add(name)
    left = set(chosen)
    chosen.clear()
    return left


def scan(bench: Bench, chosen: Iterable[Any], samples: int, say: Callable[[str], object]) -> tuple[set[str], set[str]]:
    """Overloads to run whole, and overloads whose backward formula is to be run out of a mode's reach."""
    forward: set[str] = set()
    backward: set[str] = set()
    for program in programs(chosen, samples):
        plain = plainly(program)
        if plain is None or bench.run(program) == plain:
            continue
        known = backward if program.kind == "backward" else forward
        found = needed(bench, program, plain, known)
        say(f"{program.name}: {', '.join(sorted(found - known)) or 'known'}")
        known |= found
    return forward, backward


def table(forward: set[str], backward: set[str]) -> str:
    """The module's text."""
    lines = [_HEAD, ""]
    for name, names, what in (("FORWARD", forward, "the operator itself"), ("BACKWARD", backward, "its gradient")):
        lines += [f"{name}: tuple[str, ...] = (  # {what}", *(f'    "{each}",' for each in sorted(names)), ")"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=24, help="of each operator, forward and backward")
    parser.add_argument("--only", default="", help="names in the database, separated by commas")
    parser.add_argument("--print", action="store_true", help="write the table to standard output")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    only = set(filter(None, given.only.split(",")))
    chosen = [each for each in op_db() if not only or each.name in only]
    text = table(*scan(Bench(), chosen, given.samples, lambda line: print(line, file=sys.stderr, flush=True)))
    if given.print:
        print(text, end="")
    else:
        TABLE.write_text(text)


if __name__ == "__main__":
    main()
