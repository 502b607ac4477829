"""The supervising parent of `shadowgraph wrap`: runs the command with its streams and signals."""
