"""templates/pools/Dockerfile and kubernetes.yaml, built and run without Docker or Kubernetes.

    sudo .venv/bin/python -m scripts.container_check

The base system is debootstrap's, in place of the image that the Dockerfile names. Its steps run one by one in a chroot there.
Then the manifest's pods are started: by the image's entry point, as the manifest's user, with its arguments, volumes and
security settings, each the process 1 of its own process numbers. A loader takes two epochs from them; in the second one a pod
gets SIGTERM, and must end within the manifest's grace period. At the end the others must do so too, and no card may be left.

Not as in a cluster: no registry, no layers, no seccomp, no limits of CPU and memory; all pods have addresses 127.0.0.1, .2 ...

Takes minutes, 1 GB in a temporary directory, and the network (Debian's packages; DDLP_CSD_MIRROR names another mirror). Wants
root, debootstrap and PyYAML. Nothing is left behind.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.dockerfile import Copy, Run, Stage, parse

ROOT = Path(__file__).resolve().parents[1]
POOLS = ROOT / "templates/pools"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # as in Debian's images
_MIRROR = os.environ.get("DDLP_CSD_MIRROR", "")  # empty: debootstrap's own
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")  # docker build hands these on too
_EPOCHS_S = 300.0


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inside", nargs="*", help=argparse.SUPPRESS)
    inside = parser.parse_args().inside
    if inside:
        (build if inside[0] == "build" else run)(Path(inside[1]))
        return 0
    if os.geteuid() or not shutil.which("debootstrap"):
        print("container_check: needs root and debootstrap: apt-get install debootstrap", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    # Each phase has its own mounts, which end with it.
    with tempfile.TemporaryDirectory(prefix="ddlp-container-") as work:
        os.chmod(work, 0o755)
        for phase, *namespaces in (("build",), ("run", "--net", "--ipc")):
            own = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]
            command = [*own, *namespaces, sys.executable, "-m", "scripts.container_check", phase, work]
            process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
            try:
                if status := process.wait():
                    return status
            except SystemExit:
                # With the first process of the namespace all others end, and only then does this one.
                for pid in _children(process) or [process.pid]:
                    os.kill(pid, signal.SIGKILL)
                process.wait()
                raise
    return 0


def _children(process: subprocess.Popen[Any]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


# -- the image ---------------------------------------------------------------------------------------------------------


def build(work: Path) -> None:
    """Run the steps of the Dockerfile; leave the last stage's root in work/image."""
    stages = parse((POOLS / "Dockerfile").read_text())
    context = work / "context"
    # As in a fresh checkout: no kernel, no byte code.
    for name in _output("git", "ls-files", "-z", "csd_engine").split("\0")[:-1]:
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, context / name)
    bases: dict[str, Path] = {}
    roots: dict[str, Path] = {"": context}
    for number, stage in enumerate(stages):
        if stage.base not in bases:
            bases[stage.base] = _base(stage.base, work / f"base{len(bases)}")
        root = roots[stage.name or str(number)] = work / f"stage{number}"
        subprocess.run(["cp", "-a", "--reflink=auto", bases[stage.base], root], check=True)
        for name in ("resolv.conf", "hosts"):
            shutil.copy(f"/etc/{name}", root / "etc" / name)
        subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
        for step in stage.steps:
            _step(step, root, roots)
        subprocess.run(["umount", root / "proc"], check=True)
    grown = _megabytes(root) - _megabytes(bases[stages[-1].base])
    print(f"== built: {_megabytes(root)} MB, {grown} MB more than the base system", flush=True)
    root.rename(work / "image")


def _base(image: str, root: Path) -> Path:
    match = re.fullmatch(r"debian:([a-z]+)-slim", image)
    if match is None:
        raise SystemExit(f"container_check: FROM {image}: only debian:SUITE-slim can be made by debootstrap here")
    print(f"== FROM {image}: debootstrap {match[1]}", flush=True)
    command = ["debootstrap", "--variant=minbase", match[1], root, *([_MIRROR] if _MIRROR else [])]
    _quietly(command, f"debootstrap of {match[1]}")
    return root


def _quietly(command: Sequence[str | Path], what: str) -> None:
    """Run a command whose output is shown only if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{done.stdout}\ncontainer_check: {what} ended with status {done.returncode}")


def _step(step: Run | Copy, root: Path, roots: Mapping[str, Path]) -> None:
    directory = root / step.directory.lstrip("/")
    directory.mkdir(parents=True, exist_ok=True)  # WORKDIR makes it
    if isinstance(step, Copy):
        print(f"== COPY {step.stage} {' '.join(step.sources)} {step.target}", flush=True)
        target = root / os.path.join(step.directory, step.target).lstrip("/")
        for source in step.sources:
            shutil.copytree(roots[step.stage] / source.lstrip("/"), target, symlinks=True, dirs_exist_ok=True)
        return
    print(f"== RUN {step.command}", flush=True)
    proxies = {name: os.environ[name] for name in _PROXIES if name in os.environ}
    command = ["chroot", f"--userspec={step.user}", str(root), *_environment({**proxies, **step.environment}, step.directory)]
    _quietly([*command, "sh", "-c", step.command], "this RUN")


def _environment(variables: Mapping[str, str], directory: str) -> list[str]:
    return ["env", "-i", f"--chdir={directory}", f"PATH={_PATH}", *(f"{name}={value}" for name, value in variables.items())]


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def _megabytes(root: Path) -> int:
    return int(_output("du", "-xsm", str(root)).split()[0])


# -- the pods ----------------------------------------------------------------------------------------------------------


class Pod:
    """One replica of the Deployment. Starts at once; ``work`` has the image, the images and the cards."""

    def __init__(self, number: int, work: Path, spec: Mapping[str, Any], stage: Stage) -> None:
        self.spool, self.grace_s = work / f"spool{number}", float(spec["terminationGracePeriodSeconds"])
        self.stop_signal = getattr(signal, stage.stop_signal)
        (container,) = spec["containers"]
        rights, pod_rights = container["securityContext"], spec["securityContext"]
        address = f"127.0.0.{number + 1}"
        variables = {**stage.environment, **{one["name"]: address for one in container["env"]}}
        words = [re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], word) for word in container["args"]]
        # The images have another path where training runs.
        words = [word.replace("--root=", f"--root={work / 'images'}=") for word in words]
        self._mounts: list[Path] = []
        root = work / f"pod{number}"
        root.mkdir()
        self._mount("--bind", work / "image", root)
        self.spool.mkdir()
        self.spool.chmod(0o777)  # an emptyDir is root's, and open to all
        volumes = {"cards": work / "cards", "data": work / "images", "spool": self.spool}
        for one in container["volumeMounts"]:
            where = root / one["mountPath"].lstrip("/")
            where.mkdir(parents=True, exist_ok=True)
            self._mount("--bind", volumes[one["name"]], where)
            if one.get("readOnly"):
                self._mount("-o", "remount,bind,ro", where)
        self._mount("-t", "tmpfs", "-o", "mode=1777,size=64m", "shm", root / "dev/shm")
        if rights["readOnlyRootFilesystem"]:
            self._mount("-o", "remount,bind,ro", root)
        user, group = str(pod_rights["runAsUser"]), str(pod_rights["runAsGroup"])
        limits = ["setpriv", "--reuid", user, "--regid", group, "--clear-groups"]
        if not rights["allowPrivilegeEscalation"]:
            limits += ["--no-new-privs"]
        if rights["capabilities"]["drop"] == ["ALL"]:
            limits += ["--bounding-set=-all", "--inh-caps=-all"]
        command = ["unshare", "--pid", "--fork", "--kill-child", f"--mount-proc={root / 'proc'}", "chroot", str(root)]
        command += [*limits, *_environment(variables, stage.directory), *stage.entrypoint, *(words or stage.command)]
        self._process = subprocess.Popen(command)

    @staticmethod
    def _mount(*arguments: str | Path) -> None:
        subprocess.run(["mount", *arguments], check=True)

    def stop(self) -> None:
        """As a kubelet does. Raises SystemExit if the engine does not end in time, or not well."""
        (engine,) = _children(self._process)
        began = time.monotonic()
        os.kill(engine, self.stop_signal)
        try:
            status = self._process.wait(self.grace_s)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"container_check: an engine runs on {self.grace_s} s after {self.stop_signal.name}") from None
        left = [path.name for path in (self.spool / "engine").iterdir() if path.name.startswith("job-")]
        if status or left:
            raise SystemExit(f"container_check: an engine ended with status {status}, and left {left} in its spool")
        print(f"== a pod ended {time.monotonic() - began:.1f} s after its signal, status 0", flush=True)


def run(work: Path) -> None:
    """Start the manifest's pods from work/image, and train with them."""
    import yaml

    from tests.small_images import make_images

    stage = parse((POOLS / "Dockerfile").read_text())[-1]
    (manifest,) = (one for one in yaml.safe_load_all((POOLS / "kubernetes.yaml").read_text()) if one["kind"] == "Deployment")
    spec = manifest["spec"]["template"]["spec"]
    user, group = spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsGroup"]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    make_images(work / "images", 400)
    for name in ("cards", "home"):
        (work / name).mkdir(mode=0o700)
        os.chown(work / name, user, group)
    pods = [Pod(number, work, spec, stage) for number in range(manifest["spec"]["replicas"])]
    # Training as the same user. It may read all files: this checkout's Python may lie in root's home.
    right = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    command = ["setpriv", "--reuid", str(user), "--regid", str(group), "--clear-groups", *right, sys.executable, "-m"]
    command += ["tests.templates.pool_epochs", str(work / "images"), "--cards", str(work / "cards"), "--engines", str(len(pods))]
    home = {"HOME": str(work / "home"), "DDLP_HOME": str(work / "home/ddlp"), "XDG_CACHE_HOME": str(work / "home")}
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, **home}, stdout=subprocess.PIPE, text=True) as training:
        assert training.stdout is not None
        _follow(training.stdout, pods)
        if training.wait(_EPOCHS_S):
            raise SystemExit("container_check: training failed, see above")
    for pod in pods:
        pod.stop()
    if cards := [path.name for path in (work / "cards").iterdir() if path.name != "clients"]:
        raise SystemExit(f"container_check: cards are left: {cards}")
    print("container_check: done; no card and no batch is left", flush=True)


def _follow(lines: Iterable[str], pods: list[Pod]) -> None:
    for line in lines:
        print(line, end="", flush=True)
        if line.startswith("epoch 1 is under way"):
            pods.pop(0).stop()


if __name__ == "__main__":
    sys.exit(main())
