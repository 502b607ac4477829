"""The checks: one module for each kind of finding, and the registry that runs them."""
