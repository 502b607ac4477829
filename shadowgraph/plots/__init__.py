"""Pictures of memory (matplotlib)."""
