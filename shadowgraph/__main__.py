"""``python -m shadowgraph``."""

import sys

from shadowgraph.commands.main import main

sys.exit(main())
