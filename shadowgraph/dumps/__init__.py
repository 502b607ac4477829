"""Post-mortem dumps: a debugger's facts and the relevant bytes in one file that is safe to open on any machine."""
