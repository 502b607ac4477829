"""The pytest plugin: `pytest --shadowgraph` fails each test that breaks memory, with the finding.

pytest loads `plugin` in every run, so it imports only pytest and the standard library. The other modules are imported
when a run, a marker or a fixture asks for them.
"""
