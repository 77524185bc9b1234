"""``python -m memory`` is the ``memory`` command."""

import sys

from memory.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
