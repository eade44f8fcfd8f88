"""Imports what training scripts need, once, and forks a process for each. It is itself a fork of tests/forks.py's process.

A line of JSON on standard input starts one: {"script", "stdout", "stderr", "environment"}; {} ends this process. A line on
standard output gives the {"pid"} of the new process, and later one its {"pid", "status"}. The script runs as the main module of
its process.
"""

import gc
import json
import os
import select
from pathlib import Path

from tests.ddlp.faults import scene  # noqa: F401

script = ""
gc.collect()
gc.freeze()  # a child then collects only its own objects: with torch's 400,000 it takes a second
print("{}", flush=True)
while not script:
    if select.select([0], [], [], 0.05)[0]:
        line = os.read(0, 1 << 16)
        request = json.loads(line or "{}")
        if not request:
            os._exit(0)
        pid = os.fork()
        if pid:
            print(json.dumps({"pid": pid}), flush=True)
            continue
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT, 0o600), number)
        script = request["script"]
    try:
        pid, status = os.waitpid(-1, os.WNOHANG) if not script else (0, 0)
    except ChildProcessError:
        continue
    if pid:
        print(json.dumps({"pid": pid, "status": os.waitstatus_to_exitcode(status)}), flush=True)

os.closerange(3, 64)
os.environ.update(request["environment"])
exec(compile(Path(script).read_text(), script, "exec"), {"__name__": "__main__", "__file__": script})
