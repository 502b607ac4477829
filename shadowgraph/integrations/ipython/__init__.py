"""The magics ``%%shadowgraph`` and ``%shadowgraph``."""
