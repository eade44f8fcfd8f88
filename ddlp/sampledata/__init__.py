"""Data sets made on the spot from the photographs that scikit-learn and scikit-image ship.

`make_imagefolder` writes JPEG files in ImageFolder layout with ImageNet's sizes and kinds, `make_cifar10` files in
CIFAR-10's own format, `make_thumbnails` a tiny ImageFolder to try scripts out. For the templates, the benchmarks and
the tests: nothing is downloaded, everything follows from a seed. Nothing of the loader is used here but the
base of its errors, and the loader never imports this.
"""

from ddlp.sampledata.cifar import cifar10_checksums, make_cifar10
from ddlp.sampledata.imagefolder import make_imagefolder
from ddlp.sampledata.photos import CLASSES, SampleDataError, photograph
from ddlp.sampledata.thumbnails import make_thumbnails

__all__ = [
    "CLASSES",
    "SampleDataError",
    "cifar10_checksums",
    "make_cifar10",
    "make_imagefolder",
    "make_thumbnails",
    "photograph",
]
