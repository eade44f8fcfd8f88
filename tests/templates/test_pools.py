"""templates/pools: the image, the manifest and the job fit together and fit the engine. test_slurm.py runs the job."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from csd_engine.__main__ import _size, make_parser
from csd_engine.service.sealed_streams import PORT_STEP

POOLS = Path(__file__).resolve().parents[2] / "templates/pools"


@pytest.fixture(scope="module")
def image() -> dict[str, list[str]]:
    """What each instruction of the Dockerfile's last stage has behind it, by the instruction's name."""
    text = re.sub(r"^#.*\n", "", (POOLS / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", "")
    stage = defaultdict[str, list[str]](list)
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            stage.clear()
        stage[name].append(rest)
    return stage


@pytest.fixture(scope="module")
def started(image: dict[str, list[str]]) -> list[str]:
    """What the image starts, without its default arguments."""
    return json.loads(image["ENTRYPOINT"][0])


@pytest.fixture(scope="module")
def documents() -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in yaml.safe_load_all((POOLS / "kubernetes.yaml").read_text())}


def test_the_image_has_the_engine_alone_and_starts_it_without_a_shell(image, started):
    assert not any(word in command for command in image["RUN"] for word in ("torch", "pip", "gcc"))
    assert image["COPY"] == ["--from=kernel /opt/ddlp/csd_engine csd_engine"]
    assert started[:3] == ["python3", "-m", "csd_engine"] and image["STOPSIGNAL"] == ["SIGTERM"]
    assert image["USER"][-1] not in ("0:0", "root")
    options = make_parser().parse_args([*started[3:], *json.loads(image["CMD"][0])])
    assert options.card and options.listen and options.root and Path(options.spool).parent == Path("/spool")


def test_the_pods_start_the_image_as_it_wants_with_least_rights(image, documents):
    spec = documents["Deployment"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    rights = spec["securityContext"]
    assert f"{rights['runAsUser']}:{rights['runAsGroup']}" == image["USER"][-1] and rights["runAsNonRoot"]
    assert "fsGroup" not in rights  # the group could write to the cards
    assert rights["seccompProfile"] == {"type": "RuntimeDefault"} and spec["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert spec["terminationGracePeriodSeconds"] >= 30
    assert {"cpu", "memory"} == set(container["resources"]["limits"]) == set(container["resources"]["requests"])


def test_volumes_are_where_the_engine_is_told_that_they_are(started, documents):
    spec = documents["Deployment"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    options = make_parser().parse_args([*started[3:], *container["args"]])
    volumes = {one["name"]: one for one in spec["volumes"]}
    mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
    assert set(volumes) == {one["name"] for one in mounts.values()}
    assert mounts[options.root[0]]["readOnly"] and volumes[mounts[options.root[0]]["name"]]["persistentVolumeClaim"]["readOnly"]
    assert not mounts[options.card].get("readOnly")
    room = volumes[mounts[str(Path(options.spool).parent)]["name"]]["emptyDir"]["sizeLimit"]
    # Else the kubelet would evict the pod before the engine's own quota holds it back.
    assert options.quota_bytes + options.upload_bytes < _size(room.replace("i", ""))


def test_labels_and_ports_agree(started, documents):
    deployment, policy = documents["Deployment"], documents["NetworkPolicy"]["spec"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == policy["podSelector"]["matchLabels"] == labels
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert [one["name"] for one in container["env"]] == ["POD_IP"]
    options = make_parser().parse_args([*started[3:], *container["args"]])
    ports, (rule,) = [one["containerPort"] for one in container["ports"]], policy["ingress"]
    assert options.listen == f"tcp://$(POD_IP):{ports[0]}" and ports == [ports[0], ports[0] + PORT_STEP]
    assert rule["ports"] == [{"protocol": "TCP", "port": port} for port in ports] and "egress" not in policy


@pytest.mark.parametrize("nodes, arguments", (("1", ("/data", "true")), ("2", ("/data",))))
def test_a_job_too_small_says_how_to_submit_it(tmp_path, nodes, arguments):
    environment = {**os.environ, "SLURM_NNODES": nodes, "HOME": str(tmp_path)}
    done = subprocess.run([POOLS / "slurm.sh", *arguments], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "sbatch --nodes=N (2 or more)" in done.stderr
    assert not list(tmp_path.iterdir())
