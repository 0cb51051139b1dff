"""``python -m tempo`` is the command ``tempo``."""

import sys

from tempo.cli import main

if __name__ == "__main__":
    sys.exit(main())
