"""Environment variables that carry the start-up hook to a program and its descendants."""

from __future__ import annotations

import os
from collections.abc import Mapping

from shadowgraph.wrap.folder.injection_config import VARIABLE, InjectionConfig

SITE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "site")


def wrapped_environment(orders: InjectionConfig, environment: Mapping[str, str]) -> dict[str, str]:
    """A copy of an environment with the hook first on ``PYTHONPATH`` and the configuration beside it.

    Inside another wrap, this configuration replaces the outer one; the hook is not added twice.
    """
    own = environment.get("PYTHONPATH")
    before = [part for part in own.split(os.pathsep) if part != SITE] if own else []  # an empty entry is significant
    return {**environment, "PYTHONPATH": os.pathsep.join([SITE, *before]), VARIABLE: orders.encode()}
