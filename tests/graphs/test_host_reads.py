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
    monkeypatch.setattr(host_reads, "_lifts_left", 1)
    rest(True)
    assert patched() == set()
    rest(False)
    rest(True)
    assert patched() == set(host_reads._READS)
    assert torch.ones(2).tolist() == [1.0, 1.0]


def test_only_what_changes_a_class_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_reads, "_lifts_left", 2)
    host_reads.install()
    try:
        for _ in range(5):
            rest(True)
            set_refuser(None)
        assert host_reads._lifts_left == 1
    finally:
        rest(False)
        host_reads.uninstall()


@pytest.mark.usefixtures("installed")
def test_reads_that_rest_are_lifted_in_a_set_that_is_installed_anew() -> None:
    rest(True)
    host_reads.uninstall()
    assert patched() == set()
    host_reads.install()
    assert patched() == set()
    rest(False)
    assert patched() == set(host_reads._READS)


@pytest.mark.usefixtures("installed")
def test_a_signal_handler_in_between_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    lift = host_reads._patches.lift

    def interrupted() -> None:
        rest(False)
        lift()

    monkeypatch.setattr(host_reads._patches, "lift", interrupted)
    rest(True)
    assert patched() == set(host_reads._READS)


@pytest.mark.usefixtures("installed")
def test_a_method_that_the_program_saves_and_restores_meanwhile_is_hooked_again() -> None:
    rest(True)
    saved = torch.Tensor.numpy
    torch.Tensor.numpy = lambda self: None  # type: ignore[method-assign, assignment, misc]
    torch.Tensor.numpy = saved  # type: ignore[method-assign]
    rest(False)
    assert patched() == set(host_reads._READS)
