"""Version gates: what is here, what is needed, how to get it, in one line."""

from __future__ import annotations

import sys
import types
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

import shadowgraph as sg
from shadowgraph.common import compat
from shadowgraph.common.errors import BackendError, MissingPackageError


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    compat.require_cupy.cache_clear()
    yield
    compat.require_cupy.cache_clear()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu_is_one_line_and_leaves_nothing_behind() -> None:
    with pytest.raises(BackendError, match=r"backend='host'") as caught, sg.debug(backend="cuda"):
        pass
    assert "\n" not in str(caught.value)
    assert sg.current() is None
    with sg.debug(backend="host"):
        pass


def test_a_torch_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.9.1+cu128")
    with pytest.raises(
        BackendError, match=r"have torch 2\.9\.1\+cu128, need 2\.10 or later; run: pip install -U torch"
    ):
        compat.require_torch()
    monkeypatch.setattr(torch, "__version__", "2.14.1")
    compat.require_torch()


def test_no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(
        MissingPackageError, match=r"need cupy .*run: pip install 'cupy-cuda13x>=14' 'cuda-bindings>=13'$"
    ):
        compat.require_cupy()


def test_a_cupy_for_another_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        runtime=types.SimpleNamespace(runtimeGetVersion=lambda: 12090)
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(MissingPackageError, match="have a cupy for CUDA 12, need one for CUDA 13"):
        compat.require_cupy()
    monkeypatch.setattr(torch.version, "cuda", "12.9")
    assert compat.require_cupy() is cupy


class Holder:
    pass


class Tables(dict[str, int]):
    pass


class Requests(set[int]):
    pass


class Side(torch.Stream):
    pass


def stream(kind: type[torch.Stream] = torch.Stream) -> torch.Stream:
    return kind(stream_id=0, device_index=0, device_type=0)


@pytest.mark.parametrize("make", [Holder, Tables, Requests, set, frozenset, deque, torch.nn.Identity, torch.Tensor])
def test_weak_references_are_cleared(make: Callable[[], object]) -> None:
    value, ended = make(), list[object]()
    reference = compat.weak_reference(value, ended.append)
    assert reference() is value
    del value
    assert reference() is None
    assert ended == [reference]


@pytest.mark.parametrize("make", [stream, lambda: stream(Side), torch.Event, np.random.PCG64, list])
def test_no_weak_references_that_may_outlive_what_they_point_at(make: Callable[[], object]) -> None:
    """torch 2.11 does not clear those to its CUDA streams and events."""
    value = make()
    with pytest.raises(TypeError, match=r"weak references to '[A-Za-z0-9]+' are not known to be cleared"):
        compat.weak_reference(value)
