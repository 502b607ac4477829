"""SG102, in-graph mutation: a replay changed a buffer that host code owns."""

CODE = "SG102"
