"""Sampling of replays: decides which replays are checked in full, which in part, and which are not observed at all."""
