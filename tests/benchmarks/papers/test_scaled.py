"""The paper's table by its own rules, and `python -m benchmarks.papers.scaled`, run small."""

import json
import statistics

import pytest

from benchmarks.papers.events import paper_epoch
from benchmarks.papers.table6 import clean_cells
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.simulate import Simulation, World
from ddlp.schedule.strategies import STRATEGIES
from tests.benchmarks.bench import bench

CELLS = list(clean_cells())


def test_the_papers_event_rules_give_its_printed_numbers():
    assert len(CELLS) == 26
    for cell in CELLS:
        seconds, total, _ = paper_epoch(2000, cell.cpu_s, cell.device_s, cell.read_and_train_s)
        assert total == 2000 and seconds / 2000 == pytest.approx(cell.wrr_s, rel=0.02), cell


@pytest.mark.parametrize("name", ["wrr", "ordered", "mte"])
@pytest.mark.some(1)
def test_ours_are_at_the_limit_and_faster_than_the_papers(name):
    """The table in simulated time. `python -m benchmarks.papers.scaled` measures it in real time."""
    n, faster = 500, {0: [], 16: []}
    for cell in CELLS:
        world = World(
            host_s=lambda _, cell=cell: cell.host_s,
            train_s=lambda _, cell=cell: cell.train_s,
            device_s={"d": lambda _, cell=cell: cell.device_s},
        )
        run = Simulation(Ledger(n, host_slots=3, fetch_slots=3), world, lambda led, rates: STRATEGIES[name](led, rates)).run()
        assert run.seconds / n <= 1.03 * cell.limit_s, cell
        faster[cell.processes].append(cell.wrr_s / (run.seconds / n))
    assert statistics.median(faster[0]) >= 1.18 and statistics.median(faster[16]) >= 1.6


@pytest.mark.slow
def test_a_short_run(capsys, forked):
    small = ["--batches", "30", "--step", "0.15", "--rounds", "1", "--rows", "1"]
    assert bench(["papers.scaled", *small, "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)["lines"]
    assert [(line["cell"], line["processes"]) for line in lines] == [("WRN ImageNet1", 0)]
    assert all(line["seconds"][0] > line["limit_s"] and 0 < line["csd_batches"][0] < 30 for line in lines)
