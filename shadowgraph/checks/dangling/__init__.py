"""SG104, dangling pointer: a graph uses memory that was freed or moved since its capture."""

CODE = "SG104"
