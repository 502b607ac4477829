"""Documents that verbs printed with ``--json`` or that a status server gives, read again."""
