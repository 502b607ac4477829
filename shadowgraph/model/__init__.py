"""Plain data records without torch: findings, buffers, graphs and nodes, ranges, launches, facts of a run."""
