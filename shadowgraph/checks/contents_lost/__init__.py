"""SG116, contents lost: a graph reads memory whose address survived a pause, sleep or reload, and whose contents did
not."""

CODE = "SG116"
