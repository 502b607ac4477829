"""Drivers that run unmodified sglang code on a machine without a GPU, for the founding cases and for tests."""
