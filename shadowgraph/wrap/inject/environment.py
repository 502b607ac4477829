"""The environment that carries the hook to a program and to everything that it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping

from shadowgraph.wrap.folder.injection_config import VARIABLE, InjectionConfig

SITE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "site")


def wrapped_environment(orders: InjectionConfig, environment: Mapping[str, str]) -> dict[str, str]:
    """A copy of an environment with the hook first on ``PYTHONPATH`` and the orders beside it.

    Inside another wrap the orders replace those of the outer one; the hook is there once.
    """
    own = environment.get("PYTHONPATH")
    before = [part for part in own.split(os.pathsep) if part != SITE] if own else []  # an empty part counts
    return {**environment, "PYTHONPATH": os.pathsep.join([SITE, *before]), VARIABLE: orders.encode()}
