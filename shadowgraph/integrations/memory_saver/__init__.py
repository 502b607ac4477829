"""Adapter for torch_memory_saver: which memory loses its contents at a pause."""
