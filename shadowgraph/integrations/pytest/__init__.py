"""The pytest plugin: `pytest --shadowgraph` fails each test that breaks memory, with the finding.

`plugin` is what pytest loads in every run, whether anybody asked or not: it imports nothing but pytest and what the
standard library has. The rest is imported once a run, a marker or a fixture asks for it.
"""
