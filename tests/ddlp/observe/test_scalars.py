"""TensorBoard: torch's own SummaryWriter writes the curves, and they are read back from its event files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlp import DDLPError, DDLPLoader
from ddlp.observe import Scalars
from ddlp.observe.energy import EnergyResult, PartEnergy
from tests.ddlp.observe.small_loader import small

pytest.importorskip("tensorboard")


def curves(directory: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory))
    events.Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_two_epochs_of_both_sides(data, tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    loader = DDLPLoader(data, 4, strategy="csd", seed=0)
    reports = []
    with SummaryWriter(str(tmp_path)) as writer:
        scalars = Scalars(writer, loader, every=8)
        for epoch in range(2):
            for _ in loader:
                scalars.step()
            reports.append(loader.report())
            parts = (PartEnergy("cpu", 5.0, False, ("rapl",)), PartEnergy("csd", 2.0, epoch == 1, ("0.25 W",)))
            scalars.epoch(energy=EnergyResult("run", "csd", epoch, 1.0, 20, 80, 1, parts))
    found = curves(tmp_path)
    assert [step for step, _ in found["ddlp/images_per_s"]] == [8, 16, 24, 32, 40]
    assert all(value > 0 for _, value in found["ddlp/images_per_s"])
    assert all(0 <= value <= 1 for _, value in found["ddlp/spool_fill"])
    assert {step for step, _ in found["ddlp/waiting/csd"]} == {8, 16, 24, 32, 40}
    per_s = [(k, pytest.approx(report.samples / report.seconds, rel=1e-4)) for k, report in enumerate(reports)]
    assert found["ddlp_epoch/images_per_s"] == per_s
    bound = [(k, pytest.approx(report.bound_s / report.seconds, rel=1e-4)) for k, report in enumerate(reports)]
    assert found["ddlp_epoch/bound_fraction"] == bound
    assert found["ddlp_epoch/csd_share"] == [(0, 1.0), (1, 1.0)]
    assert found["ddlp_epoch/rate_csd"] == [(k, pytest.approx(report.rate_csd, rel=1e-4)) for k, report in enumerate(reports)]
    assert "ddlp_epoch/rate_host" not in found  # the host made no batch, so its rate is unknown
    waited = sum(found[f"ddlp_epoch/waiting/{cause}"][1][1] for cause in reports[1].waiting)
    assert waited == pytest.approx(reports[1].waiting_s / reports[1].seconds, rel=1e-4)
    assert found["ddlp_epoch/leases_lost"] == [(0, 0.0), (1, 0.0)] and "ddlp_epoch/leases_taken_back" in found
    assert found["ddlp_epoch/joules"] == [(0, 7.0)] and found["ddlp_epoch/joules_modelled"] == [(1, 7.0)]
    assert found["ddlp_epoch/joules/csd"] == [(0, 2.0)] and found["ddlp_epoch/joules_modelled/csd"] == [(1, 2.0)]
    assert found["ddlp_epoch/joules/cpu"] == [(0, 5.0), (1, 5.0)]


class Kept:
    """Any object with add_scalar may be used."""

    def __init__(self):
        self.said = []

    def add_scalar(self, tag, scalar_value, global_step=None):
        self.said.append((tag, scalar_value, global_step))


def test_names_and_steps_of_ones_own():
    writer, loader = Kept(), small()
    scalars = Scalars(writer, loader, every=1, tag="val")
    for k, _ in enumerate(loader):
        scalars.step(1000 + k)
    assert {step for _, _, step in writer.said} == set(range(1000, 1012)) and {tag[:4] for tag, _, _ in writer.said} == {"val/"}
    writer.said.clear()
    scalars.epoch(7)
    assert {step for _, _, step in writer.said} == {7} and {tag.split("/")[0] for tag, _, _ in writer.said} == {"val_epoch"}


def test_what_is_wrong_is_said():
    with pytest.raises(TypeError, match="add_scalar"):
        Scalars(object(), small())
    with pytest.raises(ValueError, match="every=0"):
        Scalars(Kept(), small(), every=0)
    with pytest.raises(DDLPError, match="no epoch has begun"):
        Scalars(Kept(), small()).epoch()
