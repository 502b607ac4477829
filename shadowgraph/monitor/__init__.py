"""The running debugger between backend events and findings: one monitor, under the debugger's lock."""
