"""Checks that this engine can do a job: its pipeline, layout, operators, data and batches."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from csd_engine.batchfile.reader import Layout
from csd_engine.data.base import Dataset
from csd_engine.data.roots import Roots
from csd_engine.errors import DatasetError, EngineError, OperatorFileError, PipelineError, RootNotAllowed
from csd_engine.machine.sizes import size_text
from csd_engine.prepare.operator_file import OperatorDirectory
from csd_engine.service.spool import Spool
from csd_engine.transforms.pipeline import Pipeline

__all__ = ["check_job"]


def check_job(
    pipeline_data: Dict[str, Any],
    dataset: Dataset,
    layout: Layout,
    roots: Roots,
    spool: Spool,
    operators: Optional[OperatorDirectory],
) -> None:
    """Raise EngineError with the reason if this engine can't do a job.

    Args:
        pipeline_data: the pipeline as the host has sent it.
        dataset, layout: the job's data set and batch layout.
        roots: directories that may be read.
        spool: the spool for its batches.
        operators: directory of the files of users' operators; None: there is none.
    """
    pipeline = Pipeline.parse(pipeline_data)
    shape = pipeline.output_shape(dataset.image_size())
    expected = (layout.height, layout.width, layout.channels, layout.boxes)
    if (*shape, pipeline.boxes) != expected:
        raise PipelineError(
            f"the pipeline makes images of {shape} with {pipeline.boxes} boxes, the layout says {expected[:3]} with "
            f"{layout.boxes}. Make the layout from Pipeline.output_shape."
        )
    for file in sorted({operator.file for operator in pipeline.user_operators}):
        if operators is None:
            raise OperatorFileError(
                f"the device does not have {file}.py, and its engine was started without --operators DIR. `ddlp "
                "deploy ... --operators FILE` sets it up; by hand, start it with a directory that holds the file."
            )
        operators.read(file)  # checks the file; workers run it
    refusal = spool.refusal(layout.file_bytes)
    if refusal:
        raise EngineError(refusal)
    if dataset.carried and layout.file_bytes > spool.quota_bytes // 2:
        raise EngineError(
            f"a batch file takes {size_text(layout.file_bytes)}. Where the samples' bytes come with the leases it may take "
            f"half of the engine's quota, {size_text(spool.quota_bytes)}. Raise --quota-bytes or make batches smaller."
        )
    for url in dataset.urls():
        roots.resolve(url)
    for place in dataset.host_paths(spool.arrays):
        if f"{os.path.normpath(place)}/".startswith(f"{spool.arrays}/"):
            raise RootNotAllowed(f"{place} is no array that a host has sent. Nothing else below {spool.arrays} may be read.")
        real = roots.resolve(place)
        if not os.path.exists(real):
            raise DatasetError(f"{place} does not exist on the device (there: {real}). Mount it or correct --root.")
