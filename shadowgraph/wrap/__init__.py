"""`shadowgraph wrap`: the supervising parent, the start-up hook, the run folder, the status pages."""
