"""`python -m scripts.recipes`."""

import sys

from scripts.recipes.command import main

if __name__ == "__main__":
    sys.exit(main())
