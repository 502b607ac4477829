"""SG103, stale rows: rows that a graph reads were written for an older replay."""

CODE = "SG103"
