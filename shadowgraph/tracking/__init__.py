"""Allocators, ledger entries, owner names, guards and recorded writes."""
