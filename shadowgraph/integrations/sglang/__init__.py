"""The adapter for sglang, and drivers that run unmodified sglang code on a machine without a GPU."""
