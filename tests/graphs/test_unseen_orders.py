"""Whether a program may order streams by means that are not seen."""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import Any

import pytest
import torch

from shadowgraph.graphs.unseen_orders import unseen_orders


class Holder:
    event: Any = None


def foreign(name: str) -> ModuleType:
    return ModuleType(name)


def test_a_program_with_torch_alone() -> None:
    holder, event = Holder(), torch.zeros(2)
    holder.event = event
    assert unseen_orders() is None


@pytest.mark.parametrize("name", ["cupy", "numba.cuda", "cuda.bindings.runtime", "pycuda.driver"])
def test_another_library_for_cuda(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "another", foreign(name))
    assert str(unseen_orders()).startswith(f"{__name__} orders streams")


def test_one_that_a_function_imports() -> None:
    cp = foreign("cupy")
    assert "test_one_that_a_function_imports" in str(unseen_orders())
    del cp
    assert unseen_orders() is None


def test_one_that_a_module_of_the_program_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    from support import pretended_streams

    monkeypatch.setitem(globals(), "Streams", pretended_streams.Streams)
    assert unseen_orders() is None
    monkeypatch.setattr(pretended_streams, "cp", foreign("cupy"), raising=False)
    assert "pretended_streams" in str(unseen_orders())


def test_a_library_of_cuda_itself() -> None:
    library = ctypes.CDLL(None)
    assert unseen_orders() is None
    library._name = "libcudart.so.13"
    assert unseen_orders() is not None


def test_events_of_another_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.Event`` cannot be patched. An instance needs a device, so that its class stands in for it here."""

    class Event:
        """Stands in for torch's."""

    monkeypatch.setattr(torch, "Event", Event)
    holder, events = Holder(), list[Any]()
    assert unseen_orders() is None
    holder.event = Event()
    assert unseen_orders() is not None
    holder.event = None
    events.append(Event())
    assert unseen_orders() is not None


def test_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for count, said in ((1, None), (2, "collectives run on streams of their own")):
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda count=count: count)
        assert unseen_orders() == said
