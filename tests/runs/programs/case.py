"""One acceptance case as a program of its own, with no debugger in it: case.py ID buggy|fixed."""

import sys

from shadowgraph.demos.device import HostDevice, Unwatched
from shadowgraph.demos.runner import ACCEPTANCE

wanted, form = sys.argv[1:]
case = next(case for case in ACCEPTANCE if case.id == wanted)
case.program(HostDevice(), Unwatched(), form == "fixed", 1 << 12 if case.carved else 0)
print(f"{case.id} {form} is done")
