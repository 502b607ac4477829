"""SG113, headroom: the use of a buffer grows toward its end, and will pass it."""

CODE = "SG113"
