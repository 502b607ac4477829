"""Evaluation, on the host, of index assertions in inductor's Triton kernels, from copies of a launch's arguments."""
