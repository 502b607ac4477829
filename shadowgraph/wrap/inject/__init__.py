"""Injection into wrapped processes: the start-up hook carried by the environment, and the monitor that it starts.

`site/` holds only the hook, a directory to put first on ``PYTHONPATH``. In a process that does not import torch, no
other module of this package is imported.
"""
