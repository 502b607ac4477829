"""Programs whose graphs share memory of a pool."""

from __future__ import annotations

import torch

import shadowgraph as sg

ELEMENTS = 64


def weak(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the same bytes that keeps none of them alive, as serving engines make them of a graph's outputs."""
    nbytes = tensor.numel() * tensor.element_size()
    storage = torch._C._construct_storage_from_data_pointer(tensor.data_ptr(), tensor.device, nbytes)
    return torch.empty(0, dtype=tensor.dtype).set_(storage, 0, tensor.size(), tensor.stride())


_library = torch.library.Library("shadowgraph_tests", "FRAGMENT")
_library.define("weak_ref_tensor(Tensor tensor) -> Tensor")
_library.impl("weak_ref_tensor", weak, "CPU")  # the name that vLLM's and sglang's operators have


def source(factor: float = 1.0, elements: int = ELEMENTS) -> torch.Tensor:
    return torch.arange(float(elements)) * factor


class Piece:
    """A graph of one operator, with its output held weakly.

    Parameters
    ----------
    given
        What it reads.
    factor
        What it multiplies by.
    pool
        The pool that it shares.
    """

    def __init__(self, given: torch.Tensor, factor: float, pool: tuple[int, int]) -> None:
        self.given, self.factor, self.graph = given, factor, sg.HostGraph()
        with sg.host_graph(self.graph, pool=pool):
            output = given * factor
            self.output = weak(output)
            del output

    def replay(self) -> None:
        self.graph.replay()


class Cache:
    """A workspace that is allocated at its first use, which may be in a capture."""

    def __init__(self) -> None:
        self.workspace: torch.Tensor | None = None

    def of(self, elements: int) -> torch.Tensor:
        if self.workspace is None:
            self.workspace = torch.empty(elements)
        return self.workspace


class Cached:
    """A graph that takes a workspace from a cache behind a temporary, and adds it to its input.

    Parameters
    ----------
    before
        Whether the workspace is allocated before the capture.
    elements
        Of the temporary.
    """

    def __init__(self, before: bool, elements: int = ELEMENTS) -> None:
        self.given, self.cache, self.graph = source(), Cache(), sg.HostGraph()
        if before:
            self.cache.of(ELEMENTS)
        with sg.host_graph(self.graph):
            temporary = self.given[:elements] * 2
            self.address = temporary.data_ptr()
            self.total = temporary.sum()
            del temporary
            workspace = self.cache.of(ELEMENTS)
            self.output = self.given + workspace

    @property
    def workspace(self) -> torch.Tensor:
        return self.cache.of(ELEMENTS)
