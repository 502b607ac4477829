"""Bindings to the CUDA driver for captured graphs: nodes, edges and parameters, read and changed through ``libcuda``.

cuda-bindings would do, but wraps every call; a graph of 10,000 nodes must be read while a server waits. The symbols
used here keep their binary interface from one driver to the next, which the bindings' own do not (edges and capture
information changed with CUDA 13). The GIL is held during the short calls. A caller that reads or changes a graph must
ensure that it is not destroyed meanwhile (`Graph.reading`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch

from shadowgraph.common.errors import BackendError

_P, _U, _S = ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t
RANGE_START, RANGE_SIZE, MEMORY_TYPE, DEVICE_ORDINAL = 11, 12, 2, 9  # CUpointer_attribute
DEVICE_MEMORY = 2  # CUmemorytype
PROGRAMMATIC_EDGE = 1  # CUgraphDependencyType
PROGRAMMATIC, LAUNCH_ORDER = 1, 2  # ports of a kernel node: at its trigger; once all of its blocks have begun
CONDITIONAL, MOST_BODIES = 13, 4096  # CUgraphNodeType; most bodies of a switch


class KernelParameters(ctypes.Structure):
    """``CUDA_KERNEL_NODE_PARAMS_v2``."""

    _fields_ = (
        ("func", _P),
        *((name, _U) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        *((name, _P) for name in ("parameters", "extra", "kern", "ctx")),
    )


class MemsetParameters(ctypes.Structure):
    """``CUDA_MEMSET_NODE_PARAMS``."""

    _fields_ = (("dst", _P), ("pitch", _S), ("value", _U), ("element", _U), ("width", _S), ("height", _S))


def _side(name: str) -> tuple[tuple[str, Any], ...]:
    places = tuple((f"{name}_{part}", _S) for part in ("x", "y", "z", "lod"))
    where = tuple((f"{name}_{part}", _P) for part in ("host", "device", "array", "reserved"))
    return (*places, (f"{name}_type", _U), *where, (f"{name}_pitch", _S), (f"{name}_height", _S))


class MemcpyParameters(ctypes.Structure):
    """``CUDA_MEMCPY3D``."""

    _fields_ = (*_side("src"), *_side("dst"), ("width", _S), ("height", _S), ("depth", _S))


class AllocationParameters(ctypes.Structure):
    """``CUDA_MEM_ALLOC_NODE_PARAMS``."""

    _fields_ = (("pool", ctypes.c_ubyte * 88), ("access", _P), ("accesses", _S), ("nbytes", _S), ("start", _S))


class ConditionalParameters(ctypes.Structure):
    """``CUgraphNodeParams`` of a conditional node; the bodies' handles belong to the node."""

    _fields_ = (
        *(("kind", ctypes.c_int), ("unused", ctypes.c_int * 3)),
        *(("handle", ctypes.c_uint64), ("condition", _U), ("size", _U), ("graphs", ctypes.POINTER(_P)), ("ctx", _P)),
        *(("rest", ctypes.c_int64 * 25), ("end", ctypes.c_int64)),
    )


class DriverError(BackendError):
    """A call of the driver failed."""


class Driver:
    """Driver functions by name; every call raises `DriverError` with CUDA's own name of the error."""

    def __init__(self, library: Any, patient: Any) -> None:
        self._library = library
        self._patient = patient  # the same, but releases the GIL
        self._hidden: set[int] = set()

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises
        ------
        DriverError
            When the call fails, or when this driver has no such function.
        """
        code = self.function(name)(*arguments)
        if code:
            raise DriverError(f"{name}: {self._name_of(code)}")

    def has(self, name: str) -> bool:
        """Whether this driver has the function."""
        return hasattr(self._library, name)

    def function(self, name: str) -> Any:
        """A function of the driver, which returns an error code.

        Raises
        ------
        DriverError
            When this driver has no function of that name.
        """
        try:
            return getattr(self._library, name)
        except AttributeError:
            raise DriverError(f"this driver has no {name}; a newer one does") from None

    def _name_of(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self._library.cuGetErrorName(code, ctypes.byref(text)) or text.value is None:
            return f"error {code}"
        return f"{text.value.decode()} ({code})"

    # -- reading a graph ---------------------------------------------------------------------------------------

    def capturing(self, stream: int) -> int | None:
        """Handle of the graph that a stream captures into; valid until the capture ends. None while it does not."""
        status, graph = ctypes.c_int(), _P()
        ask = self.function("cuStreamGetCaptureInfo_v2")
        ask(_P(stream), ctypes.byref(status), None, ctypes.byref(graph), None, None)  # a query without the nodes
        return graph.value if status.value == 1 else None

    def hide(self, nodes: Iterable[int]) -> None:
        """Leave nodes that are not the program's out of `nodes` and `edges`, until `reveal`."""
        self._hidden.update(nodes)

    def reveal(self, nodes: Iterable[int]) -> None:
        """The nodes are gone, or are the program's."""
        self._hidden.difference_update(nodes)

    def nodes(self, graph: int) -> list[int]:
        """Handles of a graph's nodes, in order of creation, without hidden ones."""
        hidden = self._hidden
        return [node for node in self.every_node(graph) if node not in hidden]

    def every_node(self, graph: int) -> list[int]:
        """Handles of a graph's nodes, in order of creation."""
        count = _S()
        self.call("cuGraphGetNodes", _P(graph), None, ctypes.byref(count))
        found = (_P * count.value)()
        if count.value:
            self.call("cuGraphGetNodes", _P(graph), found, ctypes.byref(count))
        return [int(handle or 0) for handle in found]

    def edges(self, graph: int) -> list[tuple[int, int]]:
        """Pairs of handles: the second node waits for the first. Without those of hidden nodes."""
        return [(first, second) for first, second, _ in self._edges(graph)]

    def early_edges(self, graph: int) -> dict[tuple[int, int], int]:
        """The pairs of `edges` whose second kernel may begin before the first one has ended, with the port of the first
        kernel that lets it: `PROGRAMMATIC` or `LAUNCH_ORDER`."""
        early, full = dict[tuple[int, int], int](), set[tuple[int, int]]()
        for first, second, data in self._edges(graph):
            port, kind = data & 0xFF, data >> 16 & 0xFF  # of ``CUgraphEdgeData``
            if kind == PROGRAMMATIC_EDGE and port in (PROGRAMMATIC, LAUNCH_ORDER):
                early[first, second] = port
            else:
                full.add((first, second))
        return {pair: port for pair, port in early.items() if pair not in full}

    def _edges(self, graph: int) -> list[tuple[int, int, int]]:
        """Pairs of handles with the data of their edge."""
        count = _S()
        self.call("cuGraphGetEdges_v2", _P(graph), None, None, None, ctypes.byref(count))
        if not count.value:
            return []
        first, second, data = (_P * count.value)(), (_P * count.value)(), (ctypes.c_uint64 * count.value)()
        self.call("cuGraphGetEdges_v2", _P(graph), first, second, data, ctypes.byref(count))
        hidden = self._hidden
        found = ((int(a or 0), int(b or 0), facts) for a, b, facts in zip(first, second, data, strict=True))
        return [(a, b, facts) for a, b, facts in found if a not in hidden and b not in hidden]

    def kind(self, node: int) -> int:
        """``CUgraphNodeType``."""
        kind = ctypes.c_int()
        self.call("cuGraphNodeGetType", _P(node), ctypes.byref(kind))
        return kind.value

    def name_of(self, function: int, kernel: bool = False) -> str:
        """The mangled name of a ``CUfunction`` or a ``CUkernel``."""
        text = ctypes.c_char_p()
        self.call("cuKernelGetName" if kernel else "cuFuncGetName", ctypes.byref(text), _P(function))
        return (text.value or b"").decode("utf-8", "replace")

    def layout_of(self, function: int, kernel: bool = False) -> tuple[tuple[int, int], ...]:
        """Offset and size of each parameter of a ``CUfunction`` or a ``CUkernel``."""
        offset, size = _S(), _S()
        ask, found = self.function("cuKernelGetParamInfo" if kernel else "cuFuncGetParamInfo"), list[tuple[int, int]]()
        while not ask(_P(function), _S(len(found)), ctypes.byref(offset), ctypes.byref(size)):
            found.append((offset.value, size.value))
        return tuple(found)

    def allocation_of(self, address: int) -> tuple[int, int] | None:
        """Start and size of the device allocation that holds an address, or None."""
        start, size, ask = ctypes.c_uint64(), _S(), self.function("cuPointerGetAttribute")
        where = ctypes.c_uint64(address)
        if ask(ctypes.byref(start), RANGE_START, where) or ask(ctypes.byref(size), RANGE_SIZE, where):
            return None
        return start.value, size.value

    def is_memory_of(self, address: int, device: int) -> bool:
        """Whether an address lies in memory of a device, by its number in this process."""
        kind, number, ask = ctypes.c_uint(), ctypes.c_int(-1), self.function("cuPointerGetAttribute")
        where = ctypes.c_uint64(address)
        if ask(ctypes.byref(kind), MEMORY_TYPE, where) or ask(ctypes.byref(number), DEVICE_ORDINAL, where):
            return False
        return kind.value == DEVICE_MEMORY and number.value == device

    def kernel_of(self, node: int) -> str:
        """The mangled name of a kernel node's kernel."""
        held = KernelParameters()
        self.call("cuGraphKernelNodeGetParams_v2", _P(node), ctypes.byref(held))
        return self.name_of(int(held.func or held.kern or 0), not held.func)

    def child(self, node: int) -> int:
        """The graph inside a child graph node, which owns it."""
        inner = _P()
        self.call("cuGraphChildGraphNodeGetGraph", _P(node), ctypes.byref(inner))
        return int(inner.value or 0)

    def bodies(self, node: int) -> tuple[int, list[int]]:
        """``CUgraphConditionalNodeType`` of a conditional node, and the graphs inside it, which it owns.

        Raises
        ------
        DriverError
            Also where the driver is too old to return the bodies.
        """
        held = ConditionalParameters()
        self.call("cuGraphNodeGetParams", _P(node), ctypes.byref(held))
        if held.kind != CONDITIONAL or held.size > MOST_BODIES or not held.graphs:
            raise DriverError("cuGraphNodeGetParams does not tell what is inside")
        return int(held.condition), [int(held.graphs[place] or 0) for place in range(held.size)]

    def allocated_by(self, node: int) -> tuple[int, int]:
        """Start and size of the allocation that an allocation node makes in each replay."""
        held = AllocationParameters()
        self.call("cuGraphMemAllocNodeGetParams", _P(node), ctypes.byref(held))
        return int(held.start or 0), int(held.nbytes or 0)

    # -- changing a graph -----------------------------------------------------------------------------------------

    def add_kernel(self, graph: int, after: Sequence[int], parameters: KernelParameters) -> int:
        """Add a kernel node that depends on the nodes `after`."""
        node, before = _P(), (_P * max(1, len(after)))(*after)
        self.call(
            "cuGraphAddKernelNode_v2", ctypes.byref(node), _P(graph), before, _S(len(after)), ctypes.byref(parameters)
        )
        return int(node.value or 0)

    def add_edges(self, graph: int, pairs: Sequence[tuple[int, int]]) -> None:
        """Add edges, none of which may exist."""
        if pairs:
            first, second = (_P * len(pairs))(*(a for a, _ in pairs)), (_P * len(pairs))(*(b for _, b in pairs))
            self.call("cuGraphAddDependencies", _P(graph), first, second, _S(len(pairs)))

    def kinds(self, nodes: Sequence[int]) -> set[int]:
        """The ``CUgraphNodeType`` values of nodes."""
        return {self.kind(node) for node in nodes}

    def remove(self, node: int) -> None:
        """Destroy a node and its edges."""
        self.call("cuGraphDestroyNode", _P(node))

    def try_instantiate(self, graph: int) -> None:
        """Raise if the graph cannot be instantiated as it is, as torch would; leaves nothing behind."""
        self.destroy_executable(self.instantiate(graph))

    # -- clones and executable graphs --------------------------------------------------------------------------

    def clone(self, graph: int) -> int:
        """A clone of a graph; the caller owns and destroys it."""
        made = _P()
        self.call("cuGraphClone", ctypes.byref(made), _P(graph))
        return int(made.value or 0)

    def in_copy(self, node: int, copy: int) -> int:
        """The node in a clone that corresponds to a node of the original."""
        found = _P()
        self.call("cuGraphNodeFindInClone", ctypes.byref(found), _P(node), _P(copy))
        return int(found.value or 0)

    def destroy_graph(self, graph: int) -> None:
        """Destroy a clone."""
        self.call("cuGraphDestroy", _P(graph))

    def instantiate(self, graph: int) -> int:
        """Instantiate a graph as torch would; the caller owns and destroys the result."""
        made, flags = _P(), ctypes.c_ulonglong(1 | 8)  # free on launch, priorities of nodes
        code = self._patient.cuGraphInstantiateWithFlags(ctypes.byref(made), _P(graph), flags)
        if code:
            raise DriverError(f"it cannot be made executable: {self._name_of(code)}")
        return int(made.value or 0)

    def destroy_executable(self, executable: int) -> None:
        """Destroy an executable graph."""
        self._patient.cuGraphExecDestroy(_P(executable))

    def launch(self, executable: int, stream: int) -> None:
        """Launch an executable graph once, asynchronously."""
        code = self._patient.cuGraphLaunch(_P(executable), _P(stream))
        if code:
            raise DriverError(f"cuGraphLaunch: {self._name_of(code)}")

    def enable(self, executable: int, node: int, on: bool) -> None:
        """Enable or disable a kernel, copy or set node for the next launches; `node` is a handle of the original
        graph."""
        self.call("cuGraphNodeSetEnabled", _P(executable), _P(node), _U(on))

    def set_words(self, address: int, words: Sequence[int], stream: int) -> None:
        """Set words of 32 bits in device memory, in order with a stream's work."""
        for place, word in enumerate(words):
            where = ctypes.c_uint64(address + 4 * place)
            code = self._patient.cuMemsetD32Async(where, _U(word), _S(1), _P(stream))  # blocks while the queue is full
            if code:
                raise DriverError(f"cuMemsetD32Async: {self._name_of(code)}")

    def is_enabled(self, executable: int, node: int) -> bool:
        """Whether a kernel, copy or set node is enabled."""
        on = _U()
        self.call("cuGraphNodeGetEnabled", _P(executable), _P(node), ctypes.byref(on))
        return bool(on.value)


def raw_graph(graph: Any) -> int:
    """The ``cudaGraph_t`` of a ``torch.cuda.CUDAGraph`` that keeps it, for the program or for us; owned by that object.

    Raises
    ------
    RuntimeError
        When the object keeps none.
    """
    return int(torch._C._CUDAGraph.raw_cuda_graph(graph))


@cache
def driver() -> Driver:
    """The loaded driver.

    Raises
    ------
    BackendError
        Where no driver is installed.
    """
    try:
        return Driver(ctypes.PyDLL("libcuda.so.1"), ctypes.CDLL("libcuda.so.1"))
    except OSError as error:
        raise BackendError(f"reading graphs needs NVIDIA's driver: {error}") from None


@cache
def demangled(name: str) -> str:
    """A demangled C++ name; the name itself where it is not mangled, or where no C++ runtime is loaded."""
    if not name.startswith("_Z"):
        return name
    try:
        runtime = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return name
    runtime.__cxa_demangle.restype = _P
    status = ctypes.c_int()
    made = runtime.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not made or status.value:
        return name
    try:
        return ctypes.string_at(made).decode("utf-8", "replace")
    finally:
        ctypes.CDLL(None).free(_P(made))
