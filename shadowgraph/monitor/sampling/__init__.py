"""Sampling of replays: which are checked in full, in part, or not at all."""
