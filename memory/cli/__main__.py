"""``python -m memory.cli``."""

import sys

from memory.cli.main import main

sys.exit(main())
