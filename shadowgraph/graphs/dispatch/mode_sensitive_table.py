"""Overloads of aten that compute otherwise under a dispatch mode. Written by `tools/mode_sensitive.py`."""

FORWARD: tuple[str, ...] = (  # the operator itself
    "linalg_eigvalsh",
    "linalg_matrix_rank.atol_rtol_tensor_out",
    "linalg_svdvals",
)
BACKWARD: tuple[str, ...] = (  # its gradient
    "masked_fill.Tensor",
    "prod",
    "prod.dim_int",
)
