"""Plain records without torch: findings, buffers, graphs and nodes, ranges, launches, the facts of a run."""
