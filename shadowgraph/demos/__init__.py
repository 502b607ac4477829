"""Acceptance cases: public bugs and silent controls as programs. Run by `shadowgraph demo` and by the tests."""
