"""A start-up hook carried by the environment, and how it has a process watched once torch is there.

`site/` holds the hook alone, a directory to put first on ``PYTHONPATH``. Nothing else here is imported in a process
that does not import torch.
"""
