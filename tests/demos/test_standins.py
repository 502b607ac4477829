"""Stand-ins appear only where the package is missing, and say what they are when used."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shadowgraph.demos.sglang import stub_modules
from shadowgraph.demos.sglang.stub_modules import install_standins, remove_standins

ROOTS = ("torchvision", "sgl_kernel", "vllm")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No stand-in installed yet; those of other tests come back afterwards."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ROOTS]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(stub_modules, "_installed", {})
    yield
    remove_standins()


@pytest.fixture
def missing(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where none of the packages is installed."""
    real = importlib.util.find_spec
    monkeypatch.setattr(stub_modules, "find_spec", lambda name: real(name) if name in sys.modules else None)


@pytest.mark.usefixtures("missing")
def test_stand_ins_can_be_imported_and_looked_up() -> None:
    assert install_standins() == ("torchvision",)
    from torchvision.io import ImageReadMode, decode_jpeg  # noqa: F401
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional  # noqa: F401

    assert len({InterpolationMode.BICUBIC, InterpolationMode.NEAREST_EXACT}) == 2
    for name in ("torchvision", "torchvision.io", "torchvision.transforms.v2.functional"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.name == name
    assert importlib.util.find_spec("torchvision.ops") is None
    assert "sgl_kernel" not in sys.modules


@pytest.mark.usefixtures("missing")
def test_using_a_stand_in_says_what_to_install() -> None:
    install_standins()
    io = importlib.import_module("torchvision.io")
    with pytest.raises(RuntimeError, match=r"torchvision\.io\.decode_jpeg was called.*install torchvision"):
        io.decode_jpeg(b"")
    with pytest.raises(AttributeError, match="only a stand-in"):
        _ = io.write_video
    with pytest.raises(ModuleNotFoundError, match=r"torchvision\.ops"):
        importlib.import_module("torchvision.ops")


@pytest.mark.usefixtures("missing")
def test_installing_twice_keeps_the_modules_and_removing_takes_them_all() -> None:
    install_standins()
    first = sys.modules["torchvision"]
    assert install_standins(engine=True) == ("sgl_kernel", "torchvision", "vllm")
    assert sys.modules["torchvision"] is first
    assert callable(importlib.import_module("sgl_kernel.kvcacheio").transfer_kv_per_layer_ph_lf)
    with pytest.raises(RuntimeError, match="install vllm"):
        importlib.import_module("vllm._custom_ops").rotary_embedding()
    remove_standins()
    remove_standins()
    assert not [name for name in sys.modules if name.partition(".")[0] in ROOTS]


@pytest.mark.usefixtures("fresh")
def test_a_real_package_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("REAL = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "torchvision" not in install_standins()
    assert "torchvision" not in sys.modules
    real = importlib.import_module("torchvision")
    monkeypatch.delitem(sys.modules, "torchvision")  # also forgotten when the test ends
    sys.modules["torchvision"] = real
    install_standins()
    remove_standins()
    assert sys.modules.pop("torchvision").REAL
