"""`shadowgraph wrap`: the supervising process, the injected start-up hook, the run folder, the status pages."""
