"""SG105, pool clobber: memory of a graph pool is read as one tensor's after another one of the pool has written it."""

CODE = "SG105"
