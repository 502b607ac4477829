"""The adapter for sglang: what a program with sglang meets. Loaded by sglang itself, through an entry point."""
