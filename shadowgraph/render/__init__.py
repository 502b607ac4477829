"""Rendering of views and findings as text, HTML pages and plots. `text` and `plots` do not import each other."""
