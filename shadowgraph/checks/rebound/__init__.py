"""SG108, rebound input: host code refreshes other memory than the graph reads."""

CODE = "SG108"
