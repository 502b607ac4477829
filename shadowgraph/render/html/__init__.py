"""Reports as HTML: the same data as the text, in one file or in a notebook's cell."""
