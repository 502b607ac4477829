"""Kernels that stand in for those of operators: same bits, same errors, same places in the dispatcher's tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# In a process of its own: kernels stay where they are until it ends.
PROGRAM = """
import json, sys, warnings
from shadowgraph.graphs.observer.observer import OperatorObserver
from operator_samples import Unusable, op_db, programs

def outcome(program):
    try:
        return program.run()
    except Unusable:
        return None
    except Exception as error:
        return type(error).__name__, str(error)

every = int(sys.argv[1])
warnings.simplefilter("ignore")
chosen = list(programs(each for at, each in enumerate(op_db()) if at % every == 0))
plain = [(outcome(each), outcome(each)) for each in chosen]
observer = OperatorObserver()
observer.start()
assert observer.wait(120), observer.sentence()
before, count, apart = observer.latest_sequence(), 0, []
for program, (first, again) in zip(chosen, plain):
    if first is not None and first == again:
        count += 1
        if all(outcome(program) != first for _ in range(4)):  # some look at how their memory is aligned
            apart.append(program.name)
noted = observer.latest_sequence() - before
print(json.dumps({"count": count, "apart": apart, "noted": noted, "failures": observer.failures}))
"""


@pytest.mark.parametrize(
    ("every", "most"), [(40, 200), pytest.param(1, 5000, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_every_operator_gives_the_same_bits_and_errors(cached: Path, every: int, most: int) -> None:
    pytest.importorskip("expecttest", reason="torch's operator database needs it")
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(every)],
        capture_output=True, text=True, env=_environment(root), cwd=root,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["apart"] == []
    assert found["failures"] == 0
    assert found["noted"] > found["count"] > most / 5, "invalid: too few programs ran"


BEFORE = """
import warnings
import torch
from shadowgraph.graphs.observer.observer import OperatorObserver

def override(library, to):
    library.impl("fill_.Scalar", lambda x, value: x.zero_().add_(to), "CPU")

x = torch.ones(3)
earlier = torch.library.Library("aten", "IMPL")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    earlier.impl("fill_.Tensor", lambda x, value: x.zero_().add_(7), "CPU")
observer = OperatorObserver()
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    observer.start()
    assert observer.wait(120), observer.sentence()
assert not told, told
assert x.fill_(torch.tensor(1.0)).tolist() == [7] * 3, "the program's kernel is left where it is"
earlier._destroy()
assert x.fill_(torch.tensor(2.0)).tolist() == [2] * 3, "and is gone when the program takes it back"
later = torch.library.Library("aten", "IMPL")
override(later, 8)
assert x.fill_(1).tolist() == [8] * 3
before = observer.latest_sequence()
later._destroy()
assert x.fill_(3).tolist() == [3] * 3
assert [each.launch.name for each in observer.since(before)] == ["aten.fill_.Scalar"]
print("over", flush=True)
"""


def test_kernels_of_the_program_are_its_own(cached: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", BEFORE], capture_output=True, text=True, env=_environment(root), cwd=root
    )
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr


WARNED = """
import sys
import torch
from shadowgraph.graphs.observer.observer import OperatorObserver

observer = OperatorObserver()
if sys.argv[1] == "observed":
    observer.start()
    assert observer.wait(120), observer.sentence()
torch.library.Library("aten", "IMPL").impl("fill_.Scalar", lambda x, value: x, "CPU")
"""


def test_torch_warns_of_the_programs_override_as_ever(cached: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    said = [
        subprocess.run(
            [sys.executable, "-W", "always", "-c", WARNED, how],
            capture_output=True, text=True, env=_environment(root), cwd=root,
        ).stderr
        for how in ("plain", "observed")
    ]  # fmt: skip
    assert "Overriding a previously registered kernel" in said[0], "invalid: torch does not warn"
    assert "Overriding a previously registered kernel" in said[1]


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(root), str(root / "tools")))}
