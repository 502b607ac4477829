"""Array work behind one protocol."""
