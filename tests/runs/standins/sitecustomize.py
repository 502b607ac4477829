"""What sglang imports and a machine without a GPU lacks, for every process of a wrapped server: a user's own hook."""

from shadowgraph.demos.sglang.stub_modules import install_standins

install_standins(engine=True)
