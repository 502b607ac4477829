"""One kind of finding a file, and the registry that runs them."""
