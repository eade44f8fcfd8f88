"""torchrun on GPUs: the job of tests/ddlp/ranks with batches on the GPU and gradients over NCCL."""

from __future__ import annotations

import pytest
import torch

from tests.ddlp.ranks.job import COUNT, Torchrun, check, truth
from tests.small_images import make_images

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(not GPUS, reason="needs a GPU")
PHASES = ["csd", "wrr", "mte"]


@pytest.mark.parametrize(
    "backend, ranks",
    # NCCL needs a GPU for each rank. With gloo, two ranks may share one.
    [pytest.param("nccl", min(2, GPUS), id=f"nccl-{min(2, GPUS)}"), pytest.param("gloo", 2, id="gloo-2")],
)
def test_ranks_train_on_gpus_with_one_engine(tmp_path, backend, ranks):
    """Ranks get disjoint samples, all of them, in equal steps, with the CPU's bits."""
    if backend == "nccl" and not torch.distributed.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    images = tmp_path / "images"
    make_images(images, COUNT)
    job = Torchrun(images, *PHASES, ranks=ranks, backend=backend, device="cuda")
    try:
        assert job.process.wait(240) == 0, job.log
        for epoch, phase in enumerate(PHASES):
            said = [job.said(phase, rank) for rank in range(ranks)]
            check(phase, said, truth(images, epoch))
            assert len({one["engine"] for one in said}) == 1 and {one["ranks"] for one in said} == {ranks}, phase
            assert all(one["csd"] for one in said), phase
        job.nothing_left()
    finally:
        job.close()
