"""Fake flashinfer package on disk, whose planners and kernels are torch operators."""

from __future__ import annotations

import os
from pathlib import Path

from support.wrapping import ROOT, environment

SUBMODULES = "from flashinfer import decode, mla, prefill\n"
_DECODE = (
    "from planning_wrappers import DecodeWrapper as BatchDecodeWithPagedKVCacheWrapper\n"
    "from planning_wrappers import fast_plan as fast_decode_plan\n"
)
_OTHERS = {
    "decode": ("BatchDecodeMlaWithPagedKVCacheWrapper",),
    "prefill": ("BatchPrefillWithPagedKVCacheWrapper", "BatchPrefillWithRaggedKVCacheWrapper"),
    "mla": ("BatchMLAPagedAttentionWrapper",),
}


def lay(folder: Path, first: str = "", whole: bool = False) -> Path:
    """Write the package; returns the directory for the path.

    Parameters
    ----------
    first
        Code of the package before it imports its submodules.
    whole
        Whether it has all wrapper classes, not only the one for decode.
    """
    package = folder / "site" / "flashinfer"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(first + SUBMODULES)
    for name, classes in _OTHERS.items():
        others = "".join(f"class {each}: pass\n" for each in classes if whole)
        (package / f"{name}.py").write_text((_DECODE if name == "decode" else "") + others)
    return package.parent


def install(site: Path, version: str) -> None:
    """Add metadata as `pip` would."""
    facts = site / f"flashinfer_python-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: flashinfer-python\nVersion: {version}\n")


def path(site: Path) -> dict[str, str]:
    """The environment of a program that imports the package."""
    return environment(PYTHONPATH=os.pathsep.join(map(str, (site, ROOT / "tests" / "integrations", ROOT))))
