"""Small stand-in modules with which sglang's code can be imported on a machine without a GPU.

sglang imports image and kernel packages at the top of modules whose attention backends never use them. Each stand-in
has the imported names and no code, and raises an explaining error when one of them is used. An installed package is
never replaced, and flashinfer has no stand-in: its absence changes which branches sglang takes.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import NoReturn

InterpolationMode = enum.Enum(
    "InterpolationMode", ["NEAREST", "NEAREST_EXACT", "BILINEAR", "BICUBIC", "BOX", "HAMMING", "LANCZOS"]
)
ImageReadMode = enum.Enum("ImageReadMode", ["UNCHANGED", "GRAY", "GRAY_ALPHA", "RGB", "RGB_ALPHA"])


@dataclass(frozen=True, slots=True)
class MissingFunction:
    """A name that can be imported and passed around; calling it raises ``RuntimeError``."""

    module: str
    name: str

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        root = self.module.partition(".")[0]
        raise RuntimeError(
            f"{self.module}.{self.name} was called, but {root} is only a stand-in here: install {root} to use it"
        )


class StandinModule(ModuleType):
    """A module with a fixed set of names and no code; other names raise an explaining ``AttributeError``.

    Parameters
    ----------
    name : str
        Full dotted name.
    functions : sequence of str
        Names to fill with `MissingFunction`.
    values : mapping of str to object
        Names that need a real value at import time, such as enumerations.
    is_package : bool
        Whether it has (stand-in) submodules.
    """

    def __init__(self, name: str, functions: Sequence[str], values: Mapping[str, object], *, is_package: bool) -> None:
        super().__init__(name, f"Stand-in for {name}.")
        # find_spec() raises ValueError on a loaded module whose __spec__ is None.
        self.__spec__ = ModuleSpec(name, loader=None, is_package=is_package)
        if is_package:
            self.__path__: list[str] = []
        for function in functions:
            setattr(self, function, MissingFunction(name, function))
        for key, value in values.items():
            setattr(self, key, value)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{self.__name__}.{name}: {self.__name__} is only a stand-in here, without that name")


_MODES: Mapping[str, object] = {"InterpolationMode": InterpolationMode}
_KV_COPIES = (
    *(f"transfer_kv_{name}" for name in ("all_layer", "all_layer_mla", "direct", "per_layer", "per_layer_mla")),
    *(f"transfer_kv_all_layer_{name}" for name in ("direct_lf_pf", "lf_pf", "lf_ph", "mla_lf_pf")),
    *(f"transfer_kv_per_layer_{name}" for name in ("direct_pf_lf", "mla_pf_lf", "pf_lf", "ph_lf")),
)

# Per root package: module name -> (functions, values). Parents come before their children.
_Contents = Mapping[str, tuple[Sequence[str], Mapping[str, object]]]
_BACKENDS: Mapping[str, _Contents] = {
    "torchvision": {
        "torchvision": ((), {}),
        "torchvision.io": (("decode_image", "decode_jpeg"), {"ImageReadMode": ImageReadMode}),
        "torchvision.transforms": ((), _MODES),
        "torchvision.transforms.functional": (("pil_to_tensor",), _MODES),
        "torchvision.transforms.v2": ((), _MODES),
        "torchvision.transforms.v2.functional": ((), {}),
    },
}
_ENGINE: Mapping[str, _Contents] = {
    "sgl_kernel": {"sgl_kernel": ((), {}), "sgl_kernel.kvcacheio": (_KV_COPIES, {})},
    "vllm": {"vllm": ((), {}), "vllm._custom_ops": (("rotary_embedding",), {})},
}

_installed: dict[str, StandinModule] = {}


def install_standins(*, engine: bool = False) -> tuple[str, ...]:
    """Register stand-ins for missing packages that sglang imports without need.

    Parameters
    ----------
    engine : bool
        Also stand in for ``sgl_kernel`` and ``vllm``, which the scheduler and the rotary embedding import. The
        attention backends do not need them, and sglang takes other branches when it finds them: hence not by default.

    Returns
    -------
    tuple of str
        Root packages that now have a stand-in, in alphabetical order. Empty when all of them are installed.

    Notes
    -----
    Idempotent. The stand-ins live in ``sys.modules`` of this process until `remove_standins`; spawned processes do not
    inherit them. Call it before ``transformers`` is imported, which looks for torchvision once and caches the answer.
    """
    for root, contents in {**_BACKENDS, **(_ENGINE if engine else {})}.items():
        if find_spec(root) is None:
            for name, (functions, values) in contents.items():
                is_package = any(other.startswith(f"{name}.") for other in contents)
                _register(StandinModule(name, functions, values, is_package=is_package))
    return tuple(sorted(name for name in _installed if "." not in name))


def remove_standins() -> None:
    """Remove every stand-in from ``sys.modules``. Names that other modules imported from them stay bound."""
    for name, module in _installed.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    _installed.clear()


def _register(module: StandinModule) -> None:
    name = module.__name__
    sys.modules[name] = module
    _installed[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
