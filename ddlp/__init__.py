"""ddlp: a drop-in for PyTorch's DataLoader that prepares each epoch from both ends.

The host's CPU works from the head of the epoch, an engine on a computer next to the data from its tail.
"""

from ddlp.datasets import ImageArrays, ImageFiles
from ddlp.errors import DDLPError, Untranslatable
from ddlp.loader import DDLPLoader
from ddlp.operators import load_operators
from ddlp.report import EpochReport
from ddlp.sources.reach import Device

__all__ = [
    "DDLPError",
    "DDLPLoader",
    "Device",
    "EpochReport",
    "ImageArrays",
    "ImageFiles",
    "Untranslatable",
    "load_operators",
]
__version__ = "0.1.0"
