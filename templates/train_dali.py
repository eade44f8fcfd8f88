r"""Train with NVIDIA DALI preparing the host's batches: the paper's MTE_D and WRR_D (its Table VII); else as train_imagenet.py.

    pip install 'ddlp[dali]'
    python templates/train_dali.py --small
    python templates/train_dali.py --data /imagenet --model vit_b_16 --workers 16 --strategy dataloader cpu mte wrr --csd csd0

cpu is DALI alone, mte and wrr are DALI with the device, dataloader is torchvision in torch's workers. DALI decodes on the GPU
where the training runs on one (the paper's DALI_G; --dali-cpu: not, its DALI_C), else on the CPU. Its pixels are nearly
torchvision's: docs/dali.md says how nearly, and which pipelines it can run.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from common import flags, parse
from ddlp.sources.host.dali import require_dali
from train_imagenet import BATCH_SIZES, MODELS, add_flags, make_task
from training import compare


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, compare, report."""
    parser = flags(__doc__, list(MODELS), strategies=("dataloader", "cpu", "mte", "wrr"))
    add_flags(parser)
    parser.add_argument("--dali-cpu", action="store_true", help="decode on the CPU for a GPU, too")
    options = parse(parser, BATCH_SIZES, arguments)
    try:
        require_dali()
    except ImportError as error:
        raise SystemExit(f"train_dali: {error}") from None
    task = make_task("train_dali", options)
    backend = "dali_cpu" if options.dali_cpu else "dali"
    return compare(dataclasses.replace(task, loader_options={"backend": backend}), options)


if __name__ == "__main__":
    sys.exit(main())
