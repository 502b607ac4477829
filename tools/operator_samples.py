"""Torch's own operators with its own inputs, as programs that run again and again from the same bytes.

`op_db` of torch's test utilities names every operator with inputs for it. Each becomes up to four programs: forward,
backward, in place and with ``out=``. Used by `tools/mode_sensitive.py` and by tests; needs `expecttest`.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

KINDS = ("forward", "backward", "inplace", "out")
_DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool, torch.float16, torch.bfloat16)
_LARGEST = 1 << 20  # elements of a sample
_UNDEFINED = ("empty", "resize_", "new_empty")  # their results hold what was there

Image = tuple[str, bytes]


class Unusable(Exception):
    """There is no such program: no inputs, nothing to differentiate, no memory that bytes can be read from."""


@dataclass(frozen=True)
class Program:
    """One operator, one of its inputs, one way to call it.

    Attributes
    ----------
    name
        ``operator/sample/kind``.
    make
        Copies of the inputs, made anew, with the function that works on them.
    """

    name: str
    operator: Any
    sample: Any
    kind: str

    def make(self) -> tuple[list[torch.Tensor], Callable[[], Any]]:
        """Fresh inputs, and the work on them, which returns whatever the operator makes."""
        flat, spec = tree_flatten((self.sample.input, tuple(self.sample.args), dict(self.sample.kwargs)))
        copies = [_copy(each) if isinstance(each, torch.Tensor) else each for each in flat]
        first, args, kwargs = tree_unflatten(copies, spec)
        inputs = [each for each in copies if isinstance(each, torch.Tensor)]
        if self.kind == "inplace":
            return inputs, lambda: self.operator.get_inplace()(first, *args, **kwargs)
        if self.kind == "out":
            outs = tree_map(_blank, self.operator(first, *args, **kwargs))
            return inputs, lambda: self.operator(first, *args, **kwargs, out=outs)
        if self.kind == "backward":
            return inputs, lambda: self._differentiated(inputs, self.operator(first, *args, **kwargs))
        return inputs, lambda: self.operator(first, *args, **kwargs)

    def run(self) -> list[Image]:
        """The bytes of what the operator makes and of its inputs afterwards; seeded."""
        seed()
        inputs, work = self.make()
        seed()
        with torch.set_grad_enabled(self.kind == "backward"):
            made = work()
        return images((made, inputs))

    def _differentiated(self, inputs: list[torch.Tensor], made: Any) -> Any:
        process = self.sample.output_process_fn_grad
        roots = [each for each in tree_flatten(process(made) if process else made)[0] if _differentiable(each)]
        leaves = [each for each in inputs if each.requires_grad]
        seeds = [torch.linspace(0.5, 1.5, r.numel()).reshape(r.shape).to(r.dtype) for r in roots]
        if not roots or not leaves:
            raise Unusable("nothing to differentiate")
        return [r.detach() for r in roots], torch.autograd.grad(roots, leaves, seeds, allow_unused=True)


def programs(operators: Iterator[Any] | None = None, samples: int = 3) -> Iterator[Program]:
    """Every program that can be made of torch's operators; of each operator some samples, evenly chosen.

    Parameters
    ----------
    operators
        Entries of `op_db`; all of them when None.
    samples
        Most samples of an operator, for forward and backward; in place and ``out=`` get the first.
    """
    for operator in op_db() if operators is None else operators:
        name = operator.name + (f"+{operator.variant_test_name}" if operator.variant_test_name else "")
        for kind in KINDS:
            if not _has(operator, kind):
                continue
            for at, sample in enumerate(_samples(operator, kind, 1 if kind in ("inplace", "out") else samples)):
                yield Program(f"{name}/{at}/{kind}", operator, sample, kind)


def op_db() -> list[Any]:
    """Torch's database; operators that draw random numbers do not seed the generator themselves, and inputs are made
    without a search of the whole stack, with its source lines, for the method of a `unittest.TestCase`."""
    from torch.testing._internal.common_methods_invocations import op_db as found

    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing._internal") and hasattr(module, "wrapper_set_seed"):
            module.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
        if name.startswith("torch.testing._internal") and hasattr(module, "extract_test_fn"):
            module.extract_test_fn = lambda: None
    return list(found)


def plainly(program: Program) -> list[Image] | None:
    """What a program makes where nothing watches; None for one that cannot run or makes other bits each time."""
    try:
        first = program.run()
        again = program.run()
    except Unusable:
        return None
    except Exception:  # an input that this build or this machine does not take
        return None
    return first if first == again else None


def seed() -> None:
    """Give random operators the same numbers each time."""
    torch.manual_seed(7)


def images(value: Any) -> list[Image]:
    """The tensors and numbers in a tree as bytes."""
    return [_image(each) for each in tree_flatten(value)[0]]


def _image(value: Any) -> Image:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__, repr(value).encode()
    plain = value.detach()
    if plain.layout is not torch.strided or plain.is_quantized or plain.is_nested:
        raise Unusable(f"no plain bytes: {plain.layout}")
    plain = plain.resolve_conj().resolve_neg().contiguous()
    flat = plain.reshape(-1).view(torch.uint8) if plain.numel() else plain.new_empty(0, dtype=torch.uint8)
    return f"{plain.dtype}{list(plain.shape)}", flat.numpy().tobytes()


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.numel() > _LARGEST:
        raise Unusable("a sample that is sparse or large")
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _blank(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        raise Unusable("results that are no tensors")
    return torch.zeros_like(value)


def _differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _has(operator: Any, kind: str) -> bool:
    if any(word in operator.name for word in _UNDEFINED):
        return False
    if kind == "inplace":
        return operator.get_inplace() is not None
    return bool({"out": operator.supports_out, "backward": operator.supports_autograd}.get(kind, True))


def _samples(operator: Any, kind: str, most: int) -> list[Any]:
    grad = kind == "backward"
    known = operator.supported_backward_dtypes("cpu") if grad else operator.supported_dtypes("cpu")
    dtype = next((each for each in _DTYPES if each in known), None)
    if dtype is None:
        return []
    seed()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = list(itertools.islice(operator.sample_inputs("cpu", dtype, requires_grad=grad), 4 * most))
    except Exception:  # needs a package or a device that is not here
        return []
    return made[:: max(1, len(made) // most)][:most]
