"""The adapter for flashinfer's wrapper classes: names, plans, captured pointers."""
