"""Every kind of JPEG is what its name says, and shows the picture."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.jpegkinds import FOR_PILLOW, KINDS, encode_kind, picture

SAMPLINGS = {"420": (2, 2), "422": (2, 1), "444": (1, 1), "440": (1, 2), "411": (4, 1), "410": (4, 2), "441": (1, 4)}


@pytest.mark.parametrize("kind", KINDS)
def test_kind(kind):
    for size in ((1, 1), (9, 7), (60, 41)):
        image = picture(2, size)
        data = encode_kind(kind, image, 90)
        with Image.open(io.BytesIO(data)) as read:
            assert read.size == size and read.format == "JPEG"
            name = kind.split()[0]
            if name in SAMPLINGS:
                assert [layer[1:3] for layer in read.layer] == [SAMPLINGS[name], (1, 1), (1, 1)]
            assert read.mode == {"grey": "L", "cmyk": "CMYK"}.get(name, "RGB")
            assert bool(read.info.get("progressive")) == kind.endswith("progressive")
            assert (b"\xff\xdd" in data) == kind.endswith("restart")
            original = image.convert("L") if name == "grey" else image
            distance = np.abs(np.asarray(read.convert(original.mode), int) - np.asarray(original, int))
        assert distance.mean() < 12, (size, distance.mean())


def test_what_a_kernel_may_refuse_is_a_kind():
    assert FOR_PILLOW <= set(KINDS)
