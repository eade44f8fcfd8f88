"""Pipelines as plain data, and their operators: how they are parsed, drawn and applied to one sample with Pillow.

``draw`` turns random operators into a flat list of deterministic primitives and mask boxes. It needs only the image's size.
``apply`` runs the primitives. Neither knows of batches, epochs, files or torch.
"""

from csd_engine.errors import PipelineError
from csd_engine.transforms.pipeline import Pipeline, SamplePlan
from csd_engine.transforms.resample import native_order

__all__ = ["Pipeline", "PipelineError", "SamplePlan", "native_order"]
