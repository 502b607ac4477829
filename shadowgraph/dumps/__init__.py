"""Post-mortem files: everything a debugger knows, in one file that is safe to open anywhere."""
