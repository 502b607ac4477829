"""What memory exists, who owns it, who points at it."""
