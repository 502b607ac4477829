"""Methods that read tensors are torch's own while reads rest, but for captures that refuse them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from shadowgraph.graphs.dispatch import host_reads
from shadowgraph.graphs.dispatch.host_reads import rest, set_refuser

OWN = {name: vars(torch.Tensor).get(name) for name in host_reads._READS}


def refuse(name: str, tensor: torch.Tensor) -> None:
    raise RuntimeError(f"{name} in a capture")


def patched() -> set[str]:
    return {name for name in host_reads._READS if vars(torch.Tensor).get(name) is not OWN[name]}


@pytest.fixture
def installed() -> Iterator[None]:
    host_reads.install()
    assert patched() == set(host_reads._READS), "else nothing is tested"
    yield
    rest(False)
    host_reads.uninstall()
    assert patched() == set()


@pytest.mark.usefixtures("installed")
def test_reads_that_rest_reach_torch_at_once() -> None:
    rest(True)
    assert patched() == set()
    assert torch.ones(2).tolist() == [1.0, 1.0]
    rest(False)
    assert patched() == set(host_reads._READS)


@pytest.mark.usefixtures("installed")
def test_a_capture_refuses_while_reads_rest() -> None:
    rest(True)
    set_refuser(refuse)
    try:
        with pytest.raises(RuntimeError, match="tolist in a capture"):
            torch.ones(2).tolist()
    finally:
        set_refuser(None)
    assert patched() == set()
    set_refuser(refuse)
    rest(False)
    set_refuser(None)
    assert patched() == set(host_reads._READS)


@pytest.mark.usefixtures("installed")
def test_a_class_is_changed_so_many_times_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_reads, "_lifts", host_reads._MOST_LIFTS - 1)
    rest(True)
    assert patched() == set()
    rest(False)
    rest(True)
    assert patched() == set(host_reads._READS)
    assert torch.ones(2).tolist() == [1.0, 1.0]
