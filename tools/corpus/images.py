"""What a program kept, as bytes, and where two runs of it differ."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch


class Kept(NamedTuple):
    """One result: what it is called, its form, its bytes (or its text, of a plain value)."""

    label: str
    form: str
    value: bytes | str


def kept_of(label: str, value: Any, quietly: bool) -> Kept | None:
    """A value as bytes; None for what cannot be compared."""
    if isinstance(value, torch.Tensor):
        return Kept(label, _form(value), _image(value, quietly))
    if isinstance(value, (int, float, bool, str, complex)):
        return Kept(label, "value", repr(value))
    return None


def difference(one: list[Kept], other: list[Kept]) -> str | None:
    """None when two runs are bit-identical, else where they first differ. Strides may differ."""
    if len(one) != len(other):
        return f"{len(one)} values and {len(other)}"
    for left, right in zip(one, other, strict=True):
        if left.form.split(" (")[0] != right.form.split(" (")[0]:
            return f"{left.label}: {left.form} and {right.form}"
        if left.value != right.value:
            return f"{left.label} {left.form}: {_where(left.value, right.value)}"
    return None


def _where(left: bytes | str, right: bytes | str) -> str:
    if not (isinstance(left, bytes) and isinstance(right, bytes) and len(left) == len(right)):
        return "differ"
    places = np.flatnonzero(np.frombuffer(left, np.uint8) != np.frombuffer(right, np.uint8))
    near = int(places[0]) // 8 * 8
    return (
        f"{len(places)} of {len(left)} bytes differ, first at {int(places[0])}: "
        f"{left[near : near + 8].hex()} and {right[near : near + 8].hex()}"
    )


def _form(tensor: torch.Tensor) -> str:
    try:
        return f"{tensor.dtype}{list(tensor.shape)} {tuple(tensor.stride())}"
    except RuntimeError:
        return f"{tensor.dtype} {tensor.layout}"


@torch.no_grad()
def _image(tensor: torch.Tensor, quietly: bool) -> bytes | str:
    """The values as bytes, row-major; `quietly`: through a copy that no mode sees."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        try:
            tensor = tensor.to_dense()
        except RuntimeError:
            return "unread"
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        tensor = tensor.as_subclass(torch.Tensor)
    tensor = tensor.resolve_conj().resolve_neg()
    if quietly:
        tensor = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    else:
        tensor = tensor.cpu().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
