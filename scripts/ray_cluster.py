"""A Ray cluster of several nodes on this machine, for tests and `scripts/ray_churn.py`: real raylets, on loopback alone.

It runs in a process of its own, so that the process that trains never imports ray. All its files are in one directory, which it
removes. Nothing is reported to anybody: Ray's usage statistics are off.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["RayCluster"]

_NODE: dict[str, Any] = {
    # Not 127.0.0.1, which Ray takes for this machine's address on its network.
    "node_ip_address": "127.0.0.2", "num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False,
    "dashboard_agent_listen_port": 0, "include_log_monitor": False,
}  # fmt: skip


_START_S = 300.0


class RayCluster:
    """A cluster of one node, its head. `add` gives it nodes with one CPU each, on which actors run.

    ``cpus``: of the head; 0: no actor runs there. ``address``: for `ddlp.RayPool`. ``home``: the directory for all temporary
    files, those of Ray's actors too.
    """

    def __init__(self, cpus: int = 0) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="ddlp-ray-"))
        with open(self.home / "log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scripts.ray_cluster", str(cpus)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=log, cwd=Path(__file__).resolve().parents[1], start_new_session=True, env=_environment(self.home),
                text=True,
            )  # fmt: skip
        try:
            self.address: str = self._answer()
        except BaseException:
            self.end()
            raise

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = (self.home / "log").read_text(errors="replace").strip().splitlines()[-20:]
            raise RuntimeError("the Ray cluster's process has ended: " + "\n".join(said))
        return json.loads(line)

    def _ask(self, *words: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def add(self) -> str:
        """Add a node with one CPU, and wait for it; return its name."""
        return str(self._ask("add"))

    def add_soon(self) -> None:
        """Begin to add a node with one CPU."""
        self._ask("add soon")

    def nodes(self) -> list[str]:
        """Return the names of the nodes that were added and not removed."""
        return list(self._ask("nodes"))

    def remove(self, node: str) -> None:
        """Kill a node's processes, its actors' too."""
        self._ask("remove", node)

    def actors(self) -> list[str]:
        """Return the names of the pools' actors."""
        return list(self._ask("actors"))

    def kill(self, actor: str) -> bool:
        """Call ``ray.kill`` for an actor; False if it is gone already."""
        return bool(self._ask("kill", actor))

    def end(self) -> None:
        """End the cluster and remove its files."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self.home, ignore_errors=True)


def _environment(home: Path) -> dict[str, str]:
    # Without ddlp on its path: a pool brings its engines' code along.
    own = {"RAY_TMPDIR": str(home), "TMPDIR": str(home), "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    # A busy machine takes long to start Ray's processes, and shall start no more of them than there are actors.
    own |= {"RAY_worker_register_timeout_seconds": "300", "RAY_enable_worker_prestart": "0"}
    own |= {"RAY_prestart_worker_first_driver": "0"}
    return {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **own}


def _patiently(get_node: Callable[..., Any]) -> Callable[..., Any]:
    """Ray waits 30 s for a node's first processes, which is not enough on a busy machine, and has no setting for it."""

    def patient(*arguments: Any) -> Any:
        end = time.monotonic() + _START_S
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    return patient


def main() -> None:
    """Run a cluster until standard input closes. Each line there is a request, as JSON, and gets a line as an answer."""
    import ray
    from ray._private import services
    from ray.cluster_utils import Cluster

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints must not be taken for an answer
    services.get_node = _patiently(services.get_node)
    cluster = Cluster(initialize_head=True, head_node_args={**_NODE, "num_cpus": int(sys.argv[1]), "no_monitor": True})
    nodes: dict[str, Any] = {}

    def add() -> str:
        node = cluster.add_node(**_NODE)
        nodes[node.unique_id] = node
        return str(node.unique_id)

    def answer(what: Any) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    try:
        ray.init(cluster.address, namespace="ddlp", log_to_driver=False, logging_level="error")
        answer(cluster.address)
        for line in sys.stdin:
            match json.loads(line):
                case ["add"]:
                    answer(add())
                case ["add soon"]:
                    threading.Thread(target=add, daemon=True).start()
                    answer(None)
                case ["nodes"]:
                    answer(sorted(nodes))
                case ["remove", name]:
                    answer(cluster.remove_node(nodes.pop(name), allow_graceful=False))
                case ["actors"]:
                    answer(ray.util.list_named_actors())
                case ["kill", name]:
                    try:
                        ray.kill(ray.get_actor(name))
                        answer(True)
                    except ValueError:
                        answer(False)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
