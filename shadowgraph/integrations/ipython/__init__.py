"""The IPython magics ``%%shadowgraph`` and ``%shadowgraph``."""
