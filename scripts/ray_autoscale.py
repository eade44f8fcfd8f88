#!/usr/bin/env python3
"""Trains through a `ddlp.RayPool` on a Ray cluster whose autoscaler starts and ends nodes, as `want(n)` asks for.

    python -m scripts.ray_autoscale               # as root, some minutes

`ray.cluster_utils.AutoscalingCluster` starts the cluster: its autoscaler is Ray's own, its nodes are raylets with one CPU each
on this machine. In one epoch the pool is asked for 1, 2, 0 and again 1 engines; the script waits until as many nodes run, and
no more. Each sample must come once, with the bits that the host alone makes.

It runs in namespaces of its own (`unshare`), since that class ends all of Ray's processes that it sees, and listens on all
networks. Needs `pip install ddlp[ray]`, util-linux and iproute2.

Exit status 0: the nodes followed, and each sample was right. 1: see what is printed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddlp import RayPool
from scripts.ray_churn import BATCH, loader_of, truth_of, wrong
from tests.small_images import make_images

WANTED = (1, 2, 0, 1)
WAIT_S = 600.0
IMAGES = 160
INSIDE = "DDLP_RAY_AUTOSCALE_INSIDE"


def autoscaling_cluster() -> Any:
    """A cluster whose head has no CPUs, not started."""
    from ray.cluster_utils import AutoscalingCluster

    class Cluster(AutoscalingCluster):
        """Ray's wheel lacks the file from which that class takes these settings."""

        def _generate_config(self, head_resources: Any, worker_node_types: Any, **more: Any) -> dict[str, Any]:
            lists = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
            head = {"resources": head_resources, "node_config": {}, "max_workers": 0}
            return {
                "cluster_name": "ddlp", "max_workers": 4, "upscaling_speed": 1.0, "idle_timeout_minutes": 0.1,
                "provider": {
                    "type": "fake_multinode", "use_node_id_as_ip": True, "disable_node_updaters": True,
                    "disable_launch_config_check": True,
                },
                "available_node_types": {**worker_node_types, "ray.head.default": head}, "head_node_type": "ray.head.default",
                "auth": {}, "docker": {}, "file_mounts": {}, "cluster_synced_files": [], "file_mounts_sync_continuously": False,
                "rsync_exclude": [], "rsync_filter": [], **{f"{name}_commands": [] for name in lists},
            }  # fmt: skip

    memory = 80 << 20
    node = {"resources": {"CPU": 1, "object_store_memory": memory}, "node_config": {}, "min_workers": 0, "max_workers": 4}
    return Cluster({"CPU": 0, "object_store_memory": memory}, {"node": node})


def nodes() -> int:
    """How many nodes run beside the head. No other processes than ours are seen here."""
    found = -1
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found += (path / "cmdline").read_bytes().partition(b"\0")[0].endswith(b"/raylet/raylet")
    return found


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, and print how long that took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() > began + WAIT_S:
            raise SystemExit(f"{what}: not within {WAIT_S:.0f} s")
        time.sleep(0.2)
    print(f"{what}: after {time.monotonic() - began:.0f} s", flush=True)


def run(home: Path) -> int:
    """Train through the cluster that runs; return the exit status."""
    (home / "images").mkdir()
    make_images(home / "images", IMAGES)
    paths = sorted(map(str, (home / "images").iterdir()))
    pool = RayPool(0, max(WANTED), "auto", 1)
    pool.want(0)
    loader = loader_of(paths, False, strategy="wrr", pool=pool)

    def follow(engines: int) -> None:
        pool.want(engines)
        until(lambda: len(pool.engines()) == engines == nodes(), f"want({engines}): as many engines and nodes")

    batches = []
    for step, batch in enumerate(loader):
        batches.append(batch)
        if step < len(WANTED):
            follow(WANTED[step])
    found = wrong(batches, truth_of(paths, False, 0))
    told = ", ".join(f"{count} {kind}" for kind, count in found.items()) or "each sample once, with the host's bits"
    print(f"{loader.report().batches_csd} of {IMAGES // BATCH} batches by engines, {told}")
    pool.close()
    until(lambda: nodes() == 0, "after the pool's end: no node")
    return int(bool(found))


def main() -> int:
    """Run the command; return the exit status."""
    if len(sys.argv) > 1:
        print(__doc__)
        return 0
    if INSIDE not in os.environ:
        command = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-m", __spec__.name]
        with tempfile.TemporaryDirectory(prefix="ddlp-ray-") as home:
            # AutoscalingCluster calls "ray"
            path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
            own = {INSIDE: home, "PATH": path, "TMPDIR": home, "RAY_TMPDIR": home, "DDLP_HOME": f"{home}/keys"}
            own |= {"RAY_USAGE_STATS_ENABLED": "0", "DDLP_ENGINE_SLOWDOWN": "25"}
            return subprocess.run(command, env={**os.environ, **own}).returncode
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    cluster = autoscaling_cluster()
    cluster.start()
    try:
        return run(Path(os.environ[INSIDE]))
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main())
