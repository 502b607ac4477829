"""The supervising process of `shadowgraph wrap`: runs the command with its streams and signals."""
