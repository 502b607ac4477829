"""Adapter for flashinfer's wrapper classes: names, plans, and pointers recorded at capture."""
