"""The public API is documented as a whole, and each docstring of it holds what numpydoc asks for."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from numpydoc.validate import validate
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import shadowgraph

logger = logging.getLogger(__name__)
# numpydoc's checks, without those for: types of parameters and results, which stand in the signatures and are shown
# from there (PR04, RT); See Also, Examples and an extended summary everywhere (SA01, EX01, ES01); summaries of one line
# and in the infinitive (SS05, SS06); where quotes, capitals and full stops stand (GL01 to GL03, PR08, PR09).
CHECKS = frozenset(
    {"GL05", "GL06", "GL07", "GL08", "GL10", "SS01", "SS02", "SS03", "SS04"}
    | {"PR01", "PR02", "PR03", "PR05", "PR06", "PR07", "PR10"}
)
_PARAMETERS = frozenset({"PR01", "PR02"})


def unlisted(documented: Iterable[str]) -> list[str]:
    """Names of `shadowgraph.__all__` that no page documents."""
    known = set(documented)
    return [name for name in shadowgraph.__all__ if f"shadowgraph.{name}" not in known and name != "__version__"]


def silent_members(made: type[Any]) -> Iterator[str]:
    """Public methods and properties of a class without a docstring: they would be left out without a word."""
    for base in made.__mro__:
        if base.__module__.startswith("shadowgraph"):
            for name, member in vars(base).items():
                told = isinstance(member, (classmethod, staticmethod, property)) or inspect.isfunction(member)
                if told and not name.startswith("_") and not inspect.getdoc(member):
                    yield f"{made.__name__}.{name}"


def docstring_faults(name: str, is_class: bool) -> Iterator[str]:
    """What a docstring lacks, by `CHECKS`. The parameters of a class are its attributes, or those of who makes it."""
    try:
        errors = validate(name)["errors"]
    except (ImportError, AttributeError):
        yield f"{name} is on a page and does not exist"
        return
    for check, said in errors:
        if check in CHECKS and not (is_class and check in _PARAMETERS):
            yield f"{name}: {check}: {said}"


def faults(env: BuildEnvironment) -> Iterator[str]:
    """All that is wrong with what the pages document."""
    objects = env.domains.python_domain.objects
    yield from (f"shadowgraph.{name} is public and on no page" for name in unlisted(objects))
    for name in shadowgraph.__all__:
        value = getattr(shadowgraph, name)
        if isinstance(value, type):
            yield from (f"{member} has no docstring" for member in silent_members(value))
    for name, entry in sorted(objects.items()):
        if entry.objtype in ("class", "exception", "function", "method", "classmethod") and not entry.aliased:
            yield from docstring_faults(name, entry.objtype in ("class", "exception"))


def _check(app: Sphinx, env: BuildEnvironment) -> None:
    for fault in faults(env):
        logger.warning("%s", fault)


def setup(app: Sphinx) -> None:
    app.connect("env-check-consistency", _check)
