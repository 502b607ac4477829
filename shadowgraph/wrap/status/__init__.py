"""Status of a running wrapped run: heartbeats of its processes, the pause file, the status pages."""
