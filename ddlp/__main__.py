"""`python -m ddlp`: the command line."""

import sys

from ddlp.cli import main

sys.exit(main())
