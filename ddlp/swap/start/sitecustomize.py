"""Python runs this when it starts, in each process below `ddlp run`, which has put this directory on PYTHONPATH."""

import importlib.util
import json
import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]  # the script sees the path that it would have had
_own = PathFinder.find_spec("sitecustomize", sys.path)  # the environment's own, which this file hides
if _own is not None and _own.loader is not None:
    sys.modules["sitecustomize"] = importlib.util.module_from_spec(_own)
    _own.loader.exec_module(sys.modules["sitecustomize"])

if json.loads(os.environ.get("DDLP_RUN", "{}")).get("prefix") == sys.prefix:  # else another environment's Python
    if importlib.util.find_spec("ddlp") is None:  # not installed: `python -m ddlp` in its checkout
        sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(_HERE))))
    from ddlp.swap.hook import wait

    wait()
