"""Clean CUDA-graph programs, what runs them plain and watched, and what judges the runs: `tools/clean_programs.py`."""
