"""Hooks on Triton launches, on a GPU and in Triton's interpreter."""
