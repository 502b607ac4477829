"""Views: the content of reports and plots as plain data, from a live debugger or from a dump. Nothing here draws."""
