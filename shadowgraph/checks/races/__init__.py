"""SG112, graph race: two nodes without an order changed the same bytes."""

CODE = "SG112"
