"""``python -m contentrope`` is the command line."""

import sys

from contentrope.cli import main

if __name__ == "__main__":
    sys.exit(main())
