"""Whether a device reaches an object storage: it asks once for what lies there, by the engine's settings and credentials."""

from __future__ import annotations

from collections.abc import Mapping

from ddlp.deploy.findings import Finding, bad, ok, warn
from ddlp.deploy.place import engine_module
from ddlp.deploy.shell import Shell
from ddlp.devices.address_book import DeviceRecord

__all__ = ["of_storage"]

_TIMEOUT_S = 120.0  # the interpreter's start on a board, the machine's role, and one request


def of_storage(shell: Shell, record: DeviceRecord, url: str, environment: str, versions: Mapping[str, str] | None) -> Finding:
    """Whether the engine may request objects below a URL for this host, and whether the storage answers on the device.

    Args:
        shell: to the device.
        record: of it.
        url: one of its roots.
        environment: the file there with settings and credentials of storages; empty: none.
        versions: what the engine tells to this host; None: it could not be asked.
    """
    if versions is not None and url not in versions.get("urls", "").split():
        return bad(f"data {url}: the engine does not request it for this host", "it runs with other settings",
                   f"ddlp deploy --name {record.name}")  # fmt: skip
    words = ("csd_engine", "--environment", environment or "none", "--reach", url)
    done = shell.run(engine_module(record.python, record.home, *words), timeout_s=_TIMEOUT_S)
    if done.status == 0:
        return ok(f"data {done.out.strip()}")
    told = (done.err.strip().splitlines() or [f"exit status {done.status}"])[-1]
    return warn(
        f"data {told.removeprefix('csd_engine: ').partition('. Check the URL')[0]}",
        "the engine can request nothing there, so this host makes these batches itself; unless its credentials may read "
        "objects and list none",
        f"Correct the URL, or endpoint, region and credentials in {environment or '--environment FILE'} on the device; then: "
        f"ddlp stop {record.name} && ddlp start {record.name}",
    )
