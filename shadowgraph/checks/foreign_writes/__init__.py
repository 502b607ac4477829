"""SG106, foreign write: a node changed memory that none of its arguments leads into."""

CODE = "SG106"
