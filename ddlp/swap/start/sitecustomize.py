"""Python runs this when it starts, in each process below `ddlp run`: that has put this directory on PYTHONPATH."""

import importlib.util
import json
import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]  # the script's path is what it would have been
_own = PathFinder.find_spec("sitecustomize", sys.path)  # the environment's, in whose place this one runs
if _own is not None and _own.loader is not None:
    sys.modules["sitecustomize"] = importlib.util.module_from_spec(_own)
    _own.loader.exec_module(sys.modules["sitecustomize"])

if json.loads(os.environ.get("DDLP_RUN", "{}")).get("prefix") == sys.prefix:  # else another environment's Python
    if importlib.util.find_spec("ddlp") is None:  # not installed: `python -m ddlp` in its checkout
        sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(_HERE))))
    from ddlp.swap.hook import wait_for_torch

    wait_for_torch()
