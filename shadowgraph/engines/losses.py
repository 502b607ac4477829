"""Classification of CUDA errors: errors that kill a context, and errors that only reject one call.

Used wherever an exception of torch, cupy or the driver is caught, on any thread. No lock.
"""

from __future__ import annotations

from shadowgraph.common.errors import DeviceLostError

# `cudaError_t` and `CUresult` share these numbers. After one of them every later call on the context fails, by the CUDA
# documentation: the process "must be terminated and relaunched". Anything else, out of memory or an invalid handle for
# instance, concerns one call.
STICKY = frozenset(
    (
        *(4, 46),  # the driver shuts down; the device is not available
        *(214, 220, 226),  # uncorrectable ECC or NVLink error; contained exception
        *(700, 702, 709, 710),  # illegal address; launch timeout; context destroyed; device-side assert
        *(714, 715, 716, 717),  # hardware stack; illegal instruction; misaligned address; invalid address space
        *(718, 719, 721),  # invalid program counter; launch failure; leak of tensor memory
        *(810, 911, 999),  # MPS client terminated; error of an external device; unknown
    )
)  # fmt: skip
_TEXTS = (  # `cudaGetErrorString`, for exceptions that carry no number
    "driver shutting down",
    "uncorrectable ECC error",
    "uncorrectable NVLink error",
    "illegal memory access",
    "launch timed out",
    "context is destroyed",
    "device-side assert",
    "hardware stack error",
    "illegal instruction",
    "misaligned address",
    "operation not supported on global/shared address space",
    "invalid program counter",
    "unspecified launch failure",
    "error: unknown error",
)
_NUMBERED = ("code", "error_code", "status")  # of CudaCallError, torch's AcceleratorError, cupy
_KINDS = frozenset(("AcceleratorError", "CUDARuntimeError", "CUDADriverError"))


class CudaCallError(RuntimeError):
    """The driver rejected a call; the context is alive.

    Attributes
    ----------
    code
        Its ``CUresult``.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def error_of(text: str, code: int) -> Exception:
    """The exception for a failed driver call: `DeviceLostError` or `CudaCallError`."""
    return DeviceLostError(text) if code in STICKY else CudaCallError(text, code)


def is_device_loss(error: BaseException) -> bool:
    """Whether an exception means that the CUDA context is dead, not only that one call was rejected."""
    if isinstance(error, DeviceLostError):
        return True
    if not isinstance(error, RuntimeError) and type(error).__name__ not in _KINDS:
        return False
    if type(error).__name__ not in _KINDS and not str(error).startswith("CUDA error"):
        return False
    for name in _NUMBERED:
        code = getattr(error, name, None)
        if isinstance(code, int):
            return code in STICKY
    return any(text in str(error) for text in _TEXTS)
