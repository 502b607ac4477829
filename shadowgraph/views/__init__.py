"""What a report or a picture shows, as plain data, from a live debugger or from a dump."""
