"""Reports as HTML, with the same data as the text report: one self-contained file, or a notebook cell."""
