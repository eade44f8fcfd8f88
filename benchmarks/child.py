"""`python -m benchmarks.child MODULE`: one turn of a bench, in a process of its own; `benchmarks.common.child` starts it.

Standard input has the work as JSON. The last line of standard output is what the module's ``turn(work)`` returns, as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys

if __name__ == "__main__":
    work = json.loads(sys.stdin.readline())
    print(json.dumps(importlib.import_module(sys.argv[1]).turn(work)), flush=True)
