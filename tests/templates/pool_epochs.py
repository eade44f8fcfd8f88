"""Epochs with a pool of engines that are found by cards, for scripts that start the engines in another way each.

    python -m tests.templates.pool_epochs IMAGES [--cards DIR] [--engines 2] [--epochs 2]

Each sample must come exactly once in each epoch, with the bits that the host alone makes; every engine must have made a batch
in the first epoch. The line "epoch 1 is under way" tells another process when it may end an engine.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ddlp import DDLPLoader
from tests.ddlp.faults.scene import Truth, dataset, make_loader, train
from tests.engine_process import until

_WAIT_S = 120.0  # for engines that something else starts
_STEP_S = 0.03


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path, help="a directory of *.jpg")
    parser.add_argument("--cards", default=os.environ.get("DDLP_CARDS"), help="the cards' directory (default: $DDLP_CARDS)")
    parser.add_argument("--engines", type=int, default=2, help="that must take part (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=2, help="(default %(default)s)")
    options = parser.parse_args()
    paths = sorted(map(str, options.images.glob("*.jpg")))
    data = dataset(paths)
    loader, truth = make_loader(data, "wrr", pool=options.cards), Truth(data)
    for epoch in range(options.epochs):

        def begun(epoch: int = epoch) -> None:
            if epoch == 0:
                until(lambda: len(at_work(loader)) == options.engines, _WAIT_S, f"{options.engines} engines at work")
            print(f"epoch {epoch} is under way", flush=True)

        truth.check(train(loader, _STEP_S, {3: begun}), epoch)
        report = loader.report()
        engines = ", ".join(sorted(at_work(loader)))
        made = f"{report.batches_cpu} batches by the host, {report.batches_csd} by engines: {engines}"
        print(f"epoch {epoch}: {len(paths)} samples, each once and with the host's bits; {made}", flush=True)
        for note in report.notes:
            print(f"  {note}", flush=True)


def at_work(loader: DDLPLoader) -> set[str]:
    """The engines that take part and have made a batch."""
    return {one.name for one in loader.live().devices if one.alive and one.rate}


if __name__ == "__main__":
    main()
