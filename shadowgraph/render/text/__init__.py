"""Reports, findings and views as text and JSON."""
