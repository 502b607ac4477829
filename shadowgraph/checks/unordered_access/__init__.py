"""SG115, unordered access: a write and a replay that reads the bytes run on streams that nothing orders."""

CODE = "SG115"
