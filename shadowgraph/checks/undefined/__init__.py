"""SG107, undefined influence: results depend on bytes that must not matter."""

CODE = "SG107"
