"""The acceptance cases, as programs that anybody can run."""
