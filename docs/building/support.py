"""With which versions of other packages shadowgraph works, and on which it was run.

From the metadata of the package, the gates in its code, the tools, and the evidence that is kept.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from bootstrap import NUMPY, TORCH, UNBOUND

from building.markdown import table
from building.repository import ROOT
from shadowgraph.common.compat import OLDEST_TORCH
from shadowgraph.integrations.flashinfer import versions as flashinfer
from shadowgraph.integrations.releases import written
from shadowgraph.integrations.sglang import versions as sglang
from shadowgraph.integrations.vllm import versions as vllm

EVIDENCE = ROOT / "tools" / "evidence"
HOST = "host"


def support() -> str:
    """One row a package: what is taken, what the host backend was run with, what the cuda backend was."""
    host, cuda = _ran(lambda body: body.get("card") == HOST), _ran(lambda body: body.get("card") not in (None, HOST))
    for line in (TORCH, *UNBOUND):  # of the environment that CI runs the tests in
        name, _, version = line.partition("==")
        host[name].add(version)
    rows = [(said, taken, _listed(host[name]), _listed(cuda[name])) for name, said, taken in _taken()]
    return table(("", "taken", "run on: host", "run on: cuda"), rows)


def run_on() -> str:
    """Every card and set of versions that a file of evidence is of, and the environment of CI."""
    files: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for path in sorted(EVIDENCE.glob("*.json")):
        body = json.loads(path.read_text("utf-8"))
        if "card" in body:
            cuda = f"CUDA {body['cuda']}" if "cuda" in body else ""
            packages = ", ".join(f"{name} {version}" for name, version in sorted(body["packages"].items()))
            files[body["card"], cuda, body["python"], packages].append(f"[{path.stem}](../tools/evidence/{path.name})")
    rows = [(", ".join(filter(None, key[:2])), *key[2:], ", ".join(names)) for key, names in sorted(files.items())]
    environment = ", ".join((TORCH, NUMPY, *UNBOUND))
    said = f"`tools/bootstrap.py` makes the environment of the tests, and of CI, with {environment}."
    return f"{said}\n\n{table(('card', 'Python', 'packages', 'what ran'), rows)}"


def _taken() -> Iterable[tuple[str, str, str]]:
    """Each package by the name that evidence has it under, what the table calls it, and the versions that are taken."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    cuda = ", ".join(sorted(name[len("cuda") :] for name in extras if re.fullmatch(r"cuda\d+", name)))
    (triton,) = (line for line in extras["triton"] if line.startswith("triton"))
    first, last = flashinfer.FIRST, flashinfer.LAST
    yield "python", "Python", project["requires-python"].replace(">=", "≥ ")
    yield "torch", "torch", f"≥ {'.'.join(map(str, OLDEST_TORCH))}"
    yield "cuda", "CUDA", cuda
    yield "triton", "Triton", triton.removeprefix("triton").replace(">=", "≥ ")
    yield "sglang", "sglang", f"{written(sglang.LAYOUTS[0].first)} to {written(sglang.LAYOUTS[-1].last)}"
    yield "vllm", "vLLM", f"{written(vllm.FIRST)} to {written(vllm.LAST)}"
    yield "flashinfer-python", "flashinfer", f"{written(first)} to {written(last)}"


def _ran(wanted: Callable[[dict[str, Any]], bool]) -> dict[str, set[str]]:
    """The versions of each package in the evidence of some cards."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in EVIDENCE.glob("*.json"):
        body = json.loads(path.read_text("utf-8"))
        if wanted(body):
            for name, version in {**body["packages"], "python": body["python"], "cuda": body.get("cuda", "")}.items():
                found[name] |= {re.sub(r"\+.*", "", version)} - {""}
    return found


def _listed(versions: set[str]) -> str:
    return ", ".join(sorted(versions, key=lambda text: [int(n) for n in re.findall(r"\d+", text)])) or "not"
