"""Which errors end the checking: those after which a CUDA context is dead, and no others."""

from __future__ import annotations

import pytest

from shadowgraph.common.errors import BackendError, DeviceLostError
from shadowgraph.engines.losses import STICKY, CudaCallError, error_of, is_device_loss


class AcceleratorError(RuntimeError):
    """As torch raises it."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        if code is not None:
            self.error_code = code


class CUDARuntimeError(RuntimeError):
    """As cupy raises it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


LOST = {
    "illegal access": AcceleratorError("CUDA error: an illegal memory access was encountered", 700),
    "assert, without a number": AcceleratorError("CUDA error: device-side assert triggered\nCompile with ..."),
    "older torch": RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be ..."),
    "cupy": CUDARuntimeError(719),
    "the driver": error_of("cuLaunchKernelEx: CUDA_ERROR_ILLEGAL_ADDRESS (700)", 700),
    "ours": DeviceLostError("lost"),
}
REFUSED = {
    "out of memory": AcceleratorError("CUDA error: out of memory", 2),
    "out of memory, without a number": AcceleratorError("CUDA error: out of memory"),
    "in a capture": AcceleratorError("CUDA error: operation not permitted when stream is capturing", 900),
    "an invalid handle": CUDARuntimeError(400),
    "pinned memory": CUDARuntimeError(2),
    "a launch": error_of("cuLaunchKernelEx: CUDA_ERROR_INVALID_CONTEXT (201)", 201),
    "nothing of CUDA's": RuntimeError("an illegal memory access in words only"),
    "another of ours": BackendError("no GPU"),
    "a number of something else": OSError(700, "status"),
}


@pytest.mark.parametrize("name", LOST)
def test_errors_that_end_a_context(name: str) -> None:
    assert is_device_loss(LOST[name])


@pytest.mark.parametrize("name", REFUSED)
def test_errors_of_one_call(name: str) -> None:
    assert not is_device_loss(REFUSED[name])


def test_an_error_of_the_driver_says_what_it_is() -> None:
    refused = error_of("cuStreamQuery: CUDA_ERROR_INVALID_HANDLE (400)", 400)
    assert isinstance(refused, CudaCallError)
    assert refused.code == 400
    assert all(isinstance(error_of("x", code), DeviceLostError) for code in STICKY)
