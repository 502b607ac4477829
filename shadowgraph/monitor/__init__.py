"""The running debugger between backend events and findings: one `Monitor` and its parts, under the debugger's lock."""
