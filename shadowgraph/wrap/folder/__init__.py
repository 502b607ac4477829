"""The run folder of a wrapped run: the files that its processes write, and their readers."""
