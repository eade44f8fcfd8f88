import dataclasses
import gc
import pickle
import weakref

import pytest
import torch

import ddlp.transfer.epilogue
from ddlp.transfer.epilogue import Epilogue
from ddlp.transfer.memory_pool import MemoryPool

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
LAYOUTS = [torch.contiguous_format, torch.channels_last]
BYTES = torch.arange(256, dtype=torch.float32)
MEAN, STD = torch.tensor([[0.485], [0.456], [0.406]]), torch.tensor([[0.229], [0.224], [0.225]])
TABLES = {
    "divide": (BYTES.div(255) - MEAN) / STD,
    "multiply": (BYTES * (1 / 255) - MEAN) / STD,
    "plain": BYTES.repeat(3, 1),
    "scale only": BYTES.div(255).repeat(3, 1),
    "grey": BYTES.div(255)[None] - 0.5,
    "no formula": torch.randn(3, 256, generator=torch.Generator().manual_seed(0)),
    "with infinities": torch.stack([BYTES / 0, BYTES, BYTES.log()]),
}


@pytest.fixture(autouse=True, params=["kernel", "numpy"])
def way(request, monkeypatch):
    """The kernel, if there is one, and numpy give the same bits."""
    if request.param == "numpy":
        monkeypatch.setattr(ddlp.transfer.epilogue, "kernel", lambda: None)
    else:
        request.getfixturevalue("need_kernel")


def no_fills(table):
    return torch.zeros(0, len(table))


def batch(channels=3, size=(37, 53), n=3):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (n, *size, channels), dtype=torch.uint8, generator=generator)


def expected(images, table):
    return torch.stack([table[c][images[..., c].long()] for c in range(len(table))], 1)


def bits(tensor):
    return tensor.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("size", [(37, 53), (1, 1), (3, 40000)])
@pytest.mark.some(40)
def test_the_table_is_the_result(name, dtype, layout, size):
    table, images = TABLES[name], batch(len(TABLES[name]), size)
    epilogue = Epilogue(table, no_fills(table), dtype, layout)
    result = epilogue(images)
    assert result.is_contiguous(memory_format=layout) and result.dtype == dtype
    assert torch.equal(bits(result), bits(expected(images, table).to(dtype)))
    assert result.data_ptr() != epilogue(images).data_ptr()


@pytest.mark.parametrize("name, found", [("divide", True), ("multiply", True), ("plain", True), ("no formula", False)])
def test_arithmetic_is_found_only_where_it_is_exact(name, found):
    assert (Epilogue(TABLES[name], no_fills(TABLES[name]))._arithmetic is not None) == found
    bent = TABLES[name].clone()
    bent[1, 77] = torch.nextafter(bent[1, 77], torch.tensor(9e9))
    assert Epilogue(bent, no_fills(bent))._arithmetic is None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.uint8])
def test_masks_are_filled_in_turn(dtype, layout):
    table, images = TABLES["divide"], batch()
    fills = torch.stack([table[:, 9], table[:, 200]])
    boxes = torch.tensor([[[0, 0, 9, 9], [5, 5, 37, 53]], [[0, 0, 0, 0], [3, 3, 3, 9]], [[1, 2, 3, 4], [0, 0, 0, 0]]],
                         dtype=torch.int32)
    before = images.clone()
    result = Epilogue(table, fills, dtype, layout)(images, boxes)
    wanted = before.permute(0, 3, 1, 2).clone() if dtype == torch.uint8 else expected(images, table).to(dtype)
    values = torch.tensor([[9] * 3, [200] * 3]) if dtype == torch.uint8 else fills
    for i, sample in enumerate(boxes.tolist()):
        for value, (top, left, bottom, right) in zip(values, sample, strict=True):
            wanted[i, :, top:bottom, left:right] = value.to(dtype)[:, None, None]
    assert torch.equal(bits(result), bits(wanted)) and torch.equal(images, before)
    assert result.is_contiguous(memory_format=layout)
    together = Epilogue(table, fills, dtype, layout)
    assert torch.equal(together._fill_together(together._on_device(images), boxes), result)


def test_bytes_stay_bytes():
    images = batch()
    plain = Epilogue(None, torch.zeros(0, 3), torch.uint8)
    assert torch.equal(plain(images), images.permute(0, 3, 1, 2)) and plain(images).is_contiguous()
    last = plain.with_output(memory_format=torch.channels_last)(images)
    assert last.data_ptr() == images.data_ptr() and last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(plain.with_output(torch.float32)(images), images.permute(0, 3, 1, 2).float())
    back = Epilogue(TABLES["divide"], torch.zeros(0, 3)).with_output(torch.uint8).with_output(torch.float32)
    assert torch.equal(back(images), expected(images, TABLES["divide"]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.uint8])
def test_sample_by_sample_is_the_same_as_the_batch(dtype, layout):
    table, images = TABLES["divide"], batch()
    epilogue, pool = Epilogue(table, no_fills(table), dtype, layout), MemoryPool(spare=2)
    assert epilogue.keeps_bytes == (dtype == torch.uint8 and layout == torch.channels_last)
    bits = epilogue.empty(*images.shape[:3], pool)
    for k, image in enumerate(images.numpy()):
        epilogue.convert(image[None], bits[k : k + 1])
    assert torch.equal(epilogue.tensor(bits), epilogue(images, pool=pool))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.uint8])
def test_views_of_several_sizes_are_finished_each_as_by_itself(dtype, layout):
    table, sizes = TABLES["divide"], ((9, 7), (5, 3), (9, 7))
    each = [batch(size=size) for size in sizes]
    rest = torch.full((3, 3 * 6), 255, dtype=torch.uint8)  # the row's last line is not full: 141 pixels in 21 lines of 7
    images = torch.cat([*(one.reshape(3, -1) for one in each), rest], 1).view(3, 21, 7, 3)
    alone = Epilogue(table, no_fills(table), dtype, layout)
    wanted = [alone(one) for one in each]
    epilogue = dataclasses.replace(alone, sizes=sizes)
    by_sample = epilogue.empty(3, 21, 7)
    for k, image in enumerate(images.numpy()):
        epilogue.convert(image[None], by_sample, k)
    for flat in (epilogue(images), epilogue._on_device(images), epilogue.tensor(by_sample)):
        assert flat.ndim == 1 and flat.dtype == dtype
        for found, view in zip(epilogue.views(flat, 3), wanted, strict=True):
            assert torch.equal(bits(found), bits(view)) and found.is_contiguous(memory_format=layout)


def test_wrong_arguments_are_quoted():
    table = TABLES["divide"]
    with pytest.raises(ValueError, match="mask 0 fills channel 0 with 0.5, which is no uint8"):
        Epilogue(table, torch.full((1, 3), 0.5)).with_output(torch.uint8)
    with pytest.raises(ValueError, match="float64"):
        Epilogue(table, no_fills(table), torch.float64)
    with pytest.raises(ValueError, match="channels_last_3d"):
        Epilogue(table, no_fills(table), memory_format=torch.channels_last_3d)
    with pytest.raises(ValueError, match="another pipeline"):
        Epilogue(table, no_fills(table))(batch(1))
    with pytest.raises(ValueError, match="boxes: None"):
        Epilogue(table, torch.zeros(1, 3))(batch())


def test_an_epilogue_pickles():
    epilogue = Epilogue(TABLES["divide"], torch.zeros(0, 3))
    images = batch()
    epilogue(images)
    assert torch.equal(pickle.loads(pickle.dumps(epilogue))(images), epilogue(images))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.uint8])
@pytest.mark.parametrize("name", ["divide", "multiply", "no formula"])
def test_a_gpu_gives_the_cpus_bits(name, dtype, layout):
    table, images = TABLES[name], batch()
    fills = table[:, [7]].T.contiguous()
    boxes = torch.tensor([[[0, 0, 9, 9]], [[5, 0, 9, 53]], [[0, 0, 0, 0]]], dtype=torch.int32)
    epilogue = Epilogue(table, fills, dtype, layout)
    result = epilogue(images, boxes, "cuda")
    assert result.is_cuda and result.is_contiguous(memory_format=layout)
    assert torch.equal(bits(result.cpu()), bits(epilogue(images, boxes)))


@pytest.mark.parametrize("name", ["divide", "no formula"])
def test_what_was_made_for_a_device_goes_with_the_epilogue(name):
    """Each epoch has its own epilogue, and a device's memory is scarce."""
    table, images = TABLES[name], batch()
    epilogue = Epilogue(table.clone(), torch.zeros(1, 3))
    boxes = torch.zeros(len(images), 1, 4, dtype=torch.int32)
    for _ in range(2):
        assert torch.equal(epilogue._fill_together(epilogue._on_device(images), boxes), expected(images, table))
    kept = [weakref.ref(one) for one in epilogue._kept.values() if isinstance(one, torch.Tensor)]
    made = [weakref.ref(epilogue), *kept]
    assert kept and all(one() is not None for one in made)
    del epilogue
    gc.collect()
    assert [one() for one in made] == [None] * len(made)
