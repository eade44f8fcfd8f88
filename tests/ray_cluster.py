"""A Ray cluster of several nodes on this machine, real raylets, on loopback alone.

It runs in a process of its own, so that the process that trains never imports ray. All its files are in one directory, which it
removes. Nothing is reported to anybody: Ray's usage statistics are off.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

__all__ = ["RayCluster"]

_NODE: dict[str, Any] = {
    # Not 127.0.0.1, which Ray takes for this machine's address on its network.
    "node_ip_address": "127.0.0.2", "num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False,
    "dashboard_agent_listen_port": 0, "include_log_monitor": False,
}  # fmt: skip
_IDLE_S = 6.0  # after that the autoscaler ends a node
_START_S = 300.0
_TRIES = 10


class RayCluster:
    """A cluster of one node, its head. `add` gives it nodes with one CPU each, on which actors run.

    ``cpus``: of the head; 0: no actor runs there. ``autoscaled``: Ray's autoscaler may have so many nodes with one CPU each,
    which it starts while actors have no room, and ends when they stand idle. ``address``: for `ddlp.RayPool`. ``home``: the
    directory for all temporary files, those of Ray's actors too.
    """

    def __init__(self, cpus: int = 0, autoscaled: int = 0) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="ddlp-ray-"))
        with open(self.home / "log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.ray_cluster", str(cpus), str(autoscaled)], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=log, cwd=Path(__file__).resolve().parents[1], start_new_session=True,
                env=_environment(self.home), text=True,
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

    def nodes(self) -> list[str]:
        """Return the names of the nodes that were added and not removed."""
        return list(self._ask("nodes"))

    def running(self) -> int:
        """Return how many nodes there are beside the head, by what Ray says."""
        return int(self._ask("running"))

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
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # and what nodes have left that did not start
        self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self.home, ignore_errors=True)


def _environment(home: Path) -> dict[str, str]:
    # Without ddlp on its path: a pool brings its engines' code along.
    own = {"RAY_TMPDIR": str(home), "TMPDIR": str(home), "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    # A busy machine takes long to start Ray's processes, and shall start no more of them than there are actors.
    own |= {"RAY_worker_register_timeout_seconds": "300", "RAY_enable_worker_prestart": "0"}
    own |= {"RAY_prestart_worker_first_driver": "0"}
    own |= {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    return {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **own}


def _patiently(get_node: Callable[..., Any]) -> Callable[..., Any]:
    """Ray waits 30 s for a node's first processes, which is not enough on a busy machine, and has no setting for it.

    A raylet itself ends if its agent needs over 15 s. Then this raises _NotStarted.
    """

    def patient(*arguments: Any) -> Any:
        end = time.monotonic() + _START_S
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                for child in psutil.Process().children():
                    if child.status() == psutil.STATUS_ZOMBIE and child.name() == "raylet":
                        os.waitpid(child.pid, 0)
                        raise _NotStarted("a node's raylet has ended before it was there") from None
                time.sleep(0.1)

    return patient


class _NotStarted(Exception):
    """A node has not started; another one may."""


def _autoscaling(address: str, nodes: int) -> dict[str, Any]:
    """What `AutoscalingCluster` reads from a file that Ray's wheel lacks: nodes are raylets on this machine."""
    lists = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    resources = {"CPU": 1, "object_store_memory": _NODE["object_store_memory"]}
    return {
        "cluster_name": "ddlp", "max_workers": nodes, "upscaling_speed": 1.0, "idle_timeout_minutes": _IDLE_S / 60,
        "provider": {
            "type": "fake_multinode", "gcs_address": address, "launch_multiple": True, "use_node_id_as_ip": True,
            "disable_node_updaters": True, "disable_launch_config_check": True,
        },
        "available_node_types": {
            "ray.head.default": {"resources": {}, "node_config": {}, "max_workers": 0},
            "node": {"resources": resources, "node_config": {}, "min_workers": 0, "max_workers": nodes},
        },
        "head_node_type": "ray.head.default", "auth": {}, "docker": {}, "file_mounts": {}, "cluster_synced_files": [],
        "file_mounts_sync_continuously": False, "rsync_exclude": [], "rsync_filter": [],
        **{f"{name}_commands": [] for name in lists},
    }  # fmt: skip


@contextlib.contextmanager
def _autoscaler(cluster: Any, nodes: int) -> Iterator[None]:
    """Run Ray's autoscaler on nodes that are raylets on this machine, as `ray.cluster_utils.AutoscalingCluster` does.

    That class itself first ends all of Ray's processes that it sees. In this process the nodes get this one's address and
    patience.
    """
    from ray.autoscaler._private.monitor import Monitor

    config = Path(os.environ["RAY_TMPDIR"], "autoscaling.json")
    config.write_text(json.dumps(_autoscaling(cluster.address, nodes)))
    monitor = Monitor(cluster.address, str(config))
    monitor._initialize_autoscaler()
    threading.Thread(target=monitor._run, daemon=True).start()
    try:
        yield
    finally:
        provider = monitor.autoscaler.provider
        provider.lock.acquire()  # for good: it starts no more
        for node in provider.non_terminated_nodes({"ray-node-type": "worker"}):
            provider.terminate_node(node)


def main() -> None:
    """Run a cluster until standard input closes. Each line there is a request, as JSON, and gets a line as an answer."""
    import ray
    from ray._private import services
    from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID
    from ray.cluster_utils import Cluster

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints must not be taken for an answer
    services.get_node = _patiently(services.get_node)
    cpus, autoscaled = map(int, sys.argv[1:])
    head = {**_NODE, "num_cpus": cpus, "no_monitor": True, "env_vars": {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID}}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes: dict[str, Any] = {}

    def add() -> str:
        for left in reversed(range(_TRIES)):
            try:
                node = cluster.add_node(**_NODE)
                break
            except _NotStarted:
                if not left:
                    raise
        nodes[node.unique_id] = node
        return str(node.unique_id)

    def answer(what: Any) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    with contextlib.ExitStack() as at_end:
        at_end.callback(cluster.shutdown)
        at_end.callback(ray.shutdown)
        ray.init(cluster.address, namespace="ddlp", log_to_driver=False, logging_level="error")
        if autoscaled:
            at_end.enter_context(_autoscaler(cluster, autoscaled))
        answer(cluster.address)
        for line in sys.stdin:
            match json.loads(line):
                case ["add"]:
                    answer(add())
                case ["nodes"]:
                    answer(sorted(nodes))
                case ["running"]:
                    answer(sum(one["Alive"] for one in ray.nodes()) - 1)
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


if __name__ == "__main__":
    main()
