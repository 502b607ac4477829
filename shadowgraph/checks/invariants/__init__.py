"""SG109, invariant broken: values break a declared or inferred rule, or an index is out of range."""

CODE = "SG109"
