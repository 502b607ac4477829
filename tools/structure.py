"""Measures the structure of a checkout: lines, top level, import cycles, upward imports, complexity, large classes.

    python tools/structure.py [ROOT] [--pytest-log FILE ...] [--json FILE --key NAME]

`ROOT` is a checkout of any commit, this one by default. Imports are those of `grimp`, which import-linter stands on: in
functions and under TYPE_CHECKING too. With ``--json`` the figures go under a name into a file that may hold others.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "shadowgraph"
MANY_METHODS = 15
SMALL = 40  # lines
STRICT, USUAL = 10, 8  # most by the strict count, and by that of ruff's C901
_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.Assert, ast.match_case)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def within(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions and classes inside it."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield node
            waiting += ast.iter_child_nodes(node)


def strict_complexity(function: ast.AST) -> int:
    """1 + if, for, while, except, conditional expression, assert, comprehension and its ifs, each further operand of
    and/or, match case."""
    count = 1
    for node in within(function):
        count += isinstance(node, _BRANCHES)
        if isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
    return count


def usual_complexity(root: Path) -> dict[str, int]:
    """Functions over the bound by ruff's C901, which counts statements only."""
    words = [
        "ruff",
        "check",
        "--isolated",
        "--ignore-noqa",
        "--select",
        "C901",
        "--config",
        f"lint.mccabe.max-complexity={USUAL}",
    ]
    command = [sys.executable, "-m", *words, "--output-format", "json", str(root / PACKAGE)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    counts = {}
    for each in found:
        name, count, _ = re.fullmatch(r"`(.*)` is too complex \((\d+) > (\d+)\)", each["message"]).groups()  # type: ignore[union-attr]
        counts[f"{Path(each['filename']).relative_to(root / PACKAGE)}:{name}"] = int(count)
    return counts


def over(counts: dict[str, int], most: int) -> dict[str, Any]:
    """How many functions are over a bound, and the worst ten."""
    found = sorted(((count, name) for name, count in counts.items() if count > most), reverse=True)
    return {"most": most, "over": len(found), "worst": [f"{count} {name}" for count, name in found[:10]]}


def of_code(root: Path) -> dict[str, Any]:
    """What the source alone tells."""
    files = sorted((root / PACKAGE).rglob("*.py"))
    strict, classes = dict[str, int](), dict[str, int]()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            name = f"{path.relative_to(root / PACKAGE)}:{getattr(node, 'name', '')}"
            if isinstance(node, _FUNCTIONS):
                strict[name] = max(strict.get(name, 0), strict_complexity(node))
            elif isinstance(node, ast.ClassDef):
                public = [each for each in node.body if isinstance(each, _FUNCTIONS) and not each.name.startswith("_")]
                classes[name] = len(public)
    return {
        "files": len(files),
        "lines": sum(len(path.read_text("utf-8").splitlines()) for path in files),
        "top level": len([path for path in (root / PACKAGE).iterdir() if path.is_file()]),
        "functions": len(strict),
        "strict complexity": over(strict, STRICT),
        "usual complexity": over(usual_complexity(root), USUAL),
        "public methods": over(classes, MANY_METHODS),
    }


def layers_of(root: Path) -> list[list[str]]:
    """The layers of the contract in pyproject.toml, from the highest; empty where there is none."""
    tool = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]
    contracts = tool.get("importlinter", {}).get("contracts", [])
    layers = next((each["layers"] for each in contracts if each["name"] == "layers"), [])
    return [re.split(r"\s*\|\s*", layer) for layer in layers]


def of_imports(root: Path) -> dict[str, Any]:
    """Cycles and upward imports."""
    import grimp
    import networkx

    sys.path.insert(0, str(root))
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    pairs = [(name, other) for name in graph.modules for other in graph.find_modules_directly_imported_by(name)]
    cycles = [len(each) for each in networkx.strongly_connected_components(networkx.DiGraph(pairs)) if len(each) > 1]
    places = {name: place for place, layer in enumerate(layers_of(root)) for name in layer}

    def place(module: str) -> int | None:
        parts = module.split(".")
        names = (".".join(parts[:count]) for count in range(len(parts), 1, -1))
        return next((places[name] for name in names if name in places), None)

    up = []
    for name, other in pairs:
        here, there = place(name), place(other)
        if here is not None and there is not None and there < here:
            up.append(f"{name} -> {other}")
    clients: dict[str, set[str]] = {}
    for name, other in pairs:
        clients.setdefault(other, set()).add(name)
    small = [name for name, using in clients.items() if len(using) == 1 and is_small(root, name)]
    return {
        "imports": len(pairs),
        "small modules with one client": sorted(small),
        "modules in cycles": sorted(cycles, reverse=True),
        "upward imports": sorted(up) if places else "no layers are declared",
    }


def is_small(root: Path, module: str) -> bool:
    """Whether a module has few lines. A package's `__init__` may, a kind of finding, and a table that a tool wrote."""
    path = root.joinpath(*module.split(".")).with_suffix(".py")
    if not path.exists() or module.endswith(".kind"):
        return False
    text = path.read_text("utf-8")
    return len(text.splitlines()) < SMALL and not is_generated(text)


def is_generated(text: str) -> bool:
    """Whether a module's docstring names the tool that wrote it: "Generated by `tools/NAME.py`"."""
    return re.search(r"\bGenerated by `tools/\w+\.py`", ast.get_docstring(ast.parse(text)) or "") is not None


def seconds_of(log: Path) -> dict[str, Any]:
    """The closing line of a run of pytest."""
    found = re.findall(r"^(?:=+ )?(.*) in ([\d.]+)s(?: \([\d:]+\))?(?: =+)?$", log.read_text("utf-8", "replace"), re.M)
    if not found:
        raise SystemExit(f"structure: error: {log} does not end as a run of pytest does")
    return {"tests": found[-1][0], "minutes": round(float(found[-1][1]) / 60, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=ROOT)
    parser.add_argument("--pytest-log", action="append", type=Path, default=[], help="what a run of pytest printed")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--key", default="now", help="what they are called there (default: now)")
    args = parser.parse_args()
    root = args.root.resolve()
    found = {**of_code(root), **of_imports(root), "test runs": [seconds_of(log) for log in args.pytest_log]}
    print(json.dumps(found, indent=2))
    if args.json is not None:
        kept = json.loads(args.json.read_text("utf-8")) if args.json.exists() else {}
        args.json.write_text(json.dumps({**kept, args.key: found}, indent=2) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
