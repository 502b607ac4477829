"""Reads by the host are told to nobody in a rest, at no cost: torch's own methods are there. Captures refuse them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from shadowgraph.graphs import host_reads
from shadowgraph.graphs.events import Listener, listeners
from shadowgraph.tracking.views import TensorView


class Ear(Listener):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def host_read(self, view: TensorView, how: str, waits: bool) -> None:
        self.heard.append(how)


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear()
    listeners.append(ear)
    host_reads.install()
    yield ear
    host_reads.rest(False)
    host_reads.set_refuser(None)
    host_reads.uninstall()
    listeners.remove(ear)


def own(name: str = "tolist") -> object:
    return vars(torch.Tensor).get(name)


TORCHS_OWN = own(), own("__reduce_ex__")


def test_in_a_rest_torchs_own_methods_are_there(ear: Ear) -> None:
    tensor = torch.zeros(2)
    for _ in range(3):
        host_reads.rest(True)
        assert (own(), own("__reduce_ex__")) == TORCHS_OWN
        tensor.tolist()
        assert not ear.heard
        host_reads.rest(False)
        assert own() is not TORCHS_OWN[0]
        tensor.tolist()
        assert ear.heard == ["tolist"]
        ear.heard.clear()


def test_a_capture_in_a_rest_refuses_reads(ear: Ear) -> None:
    refused: list[str] = []
    host_reads.rest(True)
    host_reads.set_refuser(lambda how, tensor: refused.append(how))
    torch.zeros(2).tolist()
    assert refused == ["tolist"]
    host_reads.set_refuser(None)
    torch.zeros(2).tolist()
    assert refused == ["tolist"]
    assert own() is TORCHS_OWN[0]
    assert not ear.heard


def test_a_rest_waits_for_the_captures_of_all_threads(ear: Ear) -> None:
    refused: list[str] = []
    host_reads.set_refuser(lambda how, tensor: refused.append(how))
    other = threading.Thread(target=host_reads.set_refuser, args=(None,))  # which had none
    other.start()
    other.join()
    host_reads.rest(True)
    torch.zeros(2).tolist()
    assert refused == ["tolist"]
    host_reads.set_refuser(None)
    assert own() is TORCHS_OWN[0]


def test_where_python_counts_changes_of_a_class_there_is_an_end(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_reads, "_MOST_RESTS", host_reads._rests + 2)
    seen = []
    for _ in range(4):
        host_reads.rest(True)
        seen.append(own() is TORCHS_OWN[0])
        torch.zeros(2).tolist()
        host_reads.rest(False)
    assert seen == [True, True, False, False]
    assert not ear.heard
    torch.zeros(2).tolist()
    assert ear.heard == ["tolist"]


def test_what_is_installed_in_a_rest_rests(ear: Ear) -> None:
    host_reads.rest(True)
    host_reads.install()
    assert own() is TORCHS_OWN[0]
    host_reads.uninstall()
    host_reads.rest(False)
    torch.zeros(2).tolist()
    assert ear.heard == ["tolist"]
