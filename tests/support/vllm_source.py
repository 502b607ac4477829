"""The source of vLLM, which is read and not imported: importing it takes a GPU and a hundred packages.

It is found where ``VLLM_SOURCE`` says, as a wheel unpacks it, else where it is installed.
"""

from __future__ import annotations

import ast
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path


def root() -> Path | None:
    """The folder that holds the package ``vllm``."""
    said = os.environ.get("VLLM_SOURCE")
    if said:
        return Path(said)
    spec = find_spec("vllm")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]).parent if places else None


@cache
def text_of(file: str) -> str:
    """The text of a file, by its path below `root`."""
    where = root()
    assert where is not None
    return (where / file).read_text("utf-8")


@cache
def tree_of(file: str) -> ast.Module:
    """The parsed file."""
    return ast.parse(text_of(file))


def file_of(module: str) -> str:
    """The file of a module, by its dotted name."""
    return f"{module.replace('.', '/')}.py"


def class_of(file: str, name: str) -> ast.ClassDef:
    """A class on the top level of a file."""
    found = [node for node in tree_of(file).body if isinstance(node, ast.ClassDef) and node.name == name]
    assert found, f"no class {name} in {file}"
    return found[0]


def method_of(file: str, owner: str, name: str) -> ast.FunctionDef:
    """A class's own method."""
    found = [node for node in class_of(file, owner).body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert found, f"no method {owner}.{name} in {file}"
    return found[-1]


def parameters(function: ast.FunctionDef) -> tuple[str, ...]:
    """Names of the positional parameters."""
    return tuple(each.arg for each in (*function.args.posonlyargs, *function.args.args))


def called(function: ast.AST, of: str = "self") -> list[str]:
    """Methods that are called on a name, in the order of the lines."""
    found = [
        (each.lineno, each.col_offset, each.func.attr)
        for each in ast.walk(function)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and ast.unparse(each.func.value) == of
    ]
    return [name for _, _, name in sorted(found)]


def assigned(node: ast.AST) -> set[str]:
    """Attributes of ``self`` that are assigned, and names that are in the body of a class."""
    found = set()
    for each in ast.walk(node):
        targets = (
            each.targets if isinstance(each, ast.Assign) else [each.target] if isinstance(each, ast.AnnAssign) else []
        )
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
                    found.add(part.attr)
                elif isinstance(part, ast.Name):
                    found.add(part.id)
    return found


def squeezed(text: str) -> str:
    """Without white space, so that lines that a formatter breaks are still found."""
    return "".join(text.split())
