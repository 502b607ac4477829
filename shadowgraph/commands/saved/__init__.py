"""Reading of JSON documents that verbs printed with ``--json`` or that a status server sends."""
