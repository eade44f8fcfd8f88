import numpy as np
import pytest
from PIL import Image

from csd_engine.transforms import native_order
from csd_engine.transforms.resample import FILTERS, resize

# (width, height) -> (width, height): kinds that both orders treat alike, and kinds where Pillow 13 begins vertically.
SHAPES = [((61, 40), (32, 32)), ((40, 90), (33, 31)), ((30, 90), (64, 20)), ((90, 41), (33, 41)), ((50, 50), (70, 81))]


def noise(size, mode="RGB", seed=0):
    channels = (3,) if mode == "RGB" else ()
    return Image.fromarray(np.random.RandomState(seed).randint(0, 256, (size[1], size[0], *channels)).astype(np.uint8))


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", sorted(FILTERS))
@pytest.mark.parametrize("source, target", SHAPES)
def test_the_native_order_is_this_pillow(source, target, name, mode):
    image = noise(source, mode)
    assert resize(image, *target, name, native_order()).tobytes() == image.resize(target, FILTERS[name]).tobytes()


@pytest.mark.parametrize("name", ["bilinear", "bicubic", "lanczos", "box", "hamming"])
@pytest.mark.parametrize("source, target", SHAPES)
def test_either_order_comes_out_of_any_pillow(monkeypatch, source, target, name):
    """Pretending that the native order is the other one forces two passes where the orders differ."""
    image = noise(source)
    native = native_order()
    other = "pillow12" if native == "pillow13" else "pillow13"
    expected = {order: resize(image, *target, name, order).tobytes() for order in (native, other)}
    horizontal = image.resize((target[0], source[1]), FILTERS[name]).resize(target, FILTERS[name]).tobytes()
    vertical = image.resize((source[0], target[1]), FILTERS[name]).resize(target, FILTERS[name]).tobytes()
    lost = source[1] - target[1]
    vertically_first = lost > 0 and lost > 2 * (source[0] - target[0])
    assert expected["pillow12"] == horizontal
    assert expected["pillow13"] == (vertical if vertically_first else horizontal)


def test_the_orders_differ_somewhere():
    image = noise((40, 90))
    assert resize(image, 33, 31, "bilinear", "pillow12").tobytes() != resize(image, 33, 31, "bilinear", "pillow13").tobytes()
