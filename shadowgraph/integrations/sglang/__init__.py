"""The adapter for sglang, and what drives unmodified sglang code on a machine without a GPU."""
