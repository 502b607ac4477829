"""Adapters for packages that programs use (flashinfer, sglang, pytest, IPython), and drivers for sglang code."""
