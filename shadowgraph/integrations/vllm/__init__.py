"""The adapter for vLLM: what a program with vLLM meets. Loaded once vLLM is imported, or by vLLM, as its plugin."""
