"""SG110, host source recycled: a copy node of a graph uses host memory that was freed since its capture."""

CODE = "SG110"
