"""Views and findings as text, HTML pages and pictures. The three do not import each other."""
