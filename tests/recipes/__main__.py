"""`python -m tests.recipes`."""

import sys

from tests.recipes.command import main

if __name__ == "__main__":
    sys.exit(main())
