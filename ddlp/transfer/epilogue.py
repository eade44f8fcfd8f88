"""The deterministic end of a pipeline, run on finished batches: a table of 256 values a channel, then the masks.

torchvision's own operators make the table on the CPU, and the table *is* the definition of the result. If a few float32
operations give the same bits for all 256 values of all channels (checked, on each device), they are used instead, since they
are about twice as fast. Any other table is looked up.

On the CPU the kernel looks values up. Without a kernel numpy computes them, a few images at a time, so that they stay in the L2
cache. Both release the GIL. Unlike torch, they never start intra-op threads, which would compete with the decoding.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from csd_engine.kernels import kernel
from ddlp.transfer.arithmetic import Arithmetic
from ddlp.transfer.memory_pool import MemoryPool

__all__ = ["DTYPES", "Epilogue", "Noise"]

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.uint8)
FORMATS = (torch.contiguous_format, torch.channels_last)
_PART = 65536  # numbers at a time: 256 KB of float32


class Noise(NamedTuple):
    """A mask that is filled with normal noise.

    Attributes:
        name: of its operator, for messages.
        mask: its number. The next number is no mask: the four numbers in its box are the seed of the noise.
        by_pixel: each pixel has noise of its own; else one number a channel.
    """

    name: str
    mask: int
    by_pixel: bool

    def drawn(self, seed: Sequence[int], channels: int, height: int, width: int) -> np.ndarray:
        """float32 (channels, height, width), or (channels, 1, 1): the same on every device."""
        first, second, third, fourth = seed
        generator = np.random.Generator(np.random.Philox(key=[first << 32 | second, third << 32 | fourth]))
        shape = (channels, height, width) if self.by_pixel else (channels, 1, 1)
        return generator.standard_normal(shape, dtype=np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class Epilogue:
    """The last step for uint8 images and mask boxes, on the device that gets them.

    Args:
        table: float32 (channels, 256), the value of each byte; None if the transform leaves bytes as they are.
        fills: float32 (masks, channels), the value of each mask's pixels in the table's units.
        dtype: of the result: float32, float16, bfloat16 or uint8. uint8 leaves the table out.
        memory_format: torch.contiguous_format or torch.channels_last.
        noise: the masks that are filled with noise instead.
        sizes: (height, width) of the views that lie one after another in each image, if they differ; (): each image is one
            view. There are no masks then.

    With ``sizes`` a result is one flat tensor in which all first views lie, then all second ones, each as a batch of its own.
    `views` tells them apart.

    Raises:
        ValueError: another dtype or memory format, shapes that don't match, or uint8 with noise or a fill that is no
            byte's value.
    """

    table: Tensor | None
    fills: Tensor
    dtype: torch.dtype = torch.float32
    memory_format: torch.memory_format = torch.contiguous_format
    noise: tuple[Noise, ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"output={self.dtype}: expected one of {', '.join(map(str, DTYPES))}")
        if self.memory_format not in FORMATS:
            raise ValueError(f"memory_format={self.memory_format}: expected one of {', '.join(map(str, FORMATS))}")
        if self.fills.ndim != 2 or self.fills.dtype != torch.float32:
            raise ValueError(f"fills: {self.fills.dtype} of {tuple(self.fills.shape)}, not float32 (masks, channels)")
        channels = self.fills.shape[1]
        if self.table is not None and (self.table.dtype, *self.table.shape) != (torch.float32, channels, 256):
            raise ValueError(f"table: {self.table.dtype} of {tuple(self.table.shape)}, not float32 ({channels}, 256)")
        if self.sizes and len(self.fills):
            raise ValueError(f"{len(self.fills)} masks: views of several sizes have none")
        if self.dtype == torch.uint8:
            if self.noise:
                raise ValueError(f"output=torch.uint8: {self.noise[0].name} fills with normal noise, which no byte holds; "
                                 "choose a float output, or mode='const'")
            self._mask_values()

    def with_output(
        self, dtype: torch.dtype | None = None, memory_format: torch.memory_format | None = None
    ) -> Epilogue:
        """Epilogue with another dtype or memory format, None for the present one; ValueError as at construction."""
        return dataclasses.replace(self, dtype=dtype or self.dtype, memory_format=memory_format or self.memory_format)

    def does_what(self, other: Epilogue) -> bool:
        """Whether another epilogue makes the same of a batch, in the same dtype."""
        tables = [epilogue.table if epilogue.table is not None else self.fills[:0] for epilogue in (self, other)]
        noise = [[mask[1:] for mask in epilogue.noise] for epilogue in (self, other)]
        same_fills = torch.equal(self.fills, other.fills) and noise[0] == noise[1]
        return torch.equal(*tables) and same_fills and (self.dtype, self.sizes) == (other.dtype, other.sizes)

    def __call__(
        self,
        images: Tensor,
        boxes: Tensor | None = None,
        device: torch.device | str | None = None,
        pool: MemoryPool | None = None,
    ) -> Tensor:
        """Result for a batch.

        Args:
            images: uint8 (batch, height, width, channels), contiguous.
            boxes: int32 (batch, masks, 4) of (top, left, bottom, right) in pixels; None if there are no masks. Empty
                boxes do nothing; of overlapping ones the later mask wins.
            device: where the result shall be; None for where the images are.
            pool: where memory on the CPU comes from; None: fresh memory.

        Returns:
            (batch, channels, height, width) in this dtype and memory format; flat if there are `sizes`. uint8 in
            channels_last is a view of ``images`` unless a mask was drawn, they were moved, or there are `sizes`; anything else
            is memory of its own.

        Raises:
            ValueError: dtypes or shapes other than these.
        """
        masks, channels = self.fills.shape
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[3] != channels:
            raise ValueError(f"images: {images.dtype} of {tuple(images.shape)}, not uint8 (batch, height, width, "
                             f"{channels}); the batch belongs to another pipeline")
        expected = (images.shape[0], masks, 4)
        if masks and (boxes is None or tuple(boxes.shape) != expected):
            got = None if boxes is None else tuple(boxes.shape)
            raise ValueError(f"boxes: {got}, not int32 {expected}; the batch belongs to another pipeline")
        target = images.device if device is None else torch.device(device)
        if target.type == "cpu" and images.device.type == "cpu":
            source = np.ascontiguousarray(images.numpy())
            samples, height, width, _ = source.shape
            bits = source if self.keeps_bytes else self.empty(samples, height, width, pool)
            if not self.keeps_bytes:
                self.convert(source, bits)
            if masks and boxes is not None:
                if self.keeps_bytes and bool((boxes[..., :2] < boxes[..., 2:]).all(-1).any()):
                    bits = source.copy()
                self.fill(self.tensor(bits), boxes.numpy())
            return self.tensor(bits)
        result = self._on_device(images.to(target, non_blocking=True))
        if masks and boxes is not None:
            result = self._fill_together(result, boxes)
        return result

    @functools.cached_property
    def _arithmetic(self) -> Arithmetic | None:
        return Arithmetic.find(self._values().numpy())

    @functools.cached_property
    def _bits(self) -> np.ndarray:
        """The table in the result's dtype, as integers: a look-up needs only bits."""
        return self._values().to(self.dtype).view(_INTEGER[self.dtype]).numpy()

    def _values(self) -> Tensor:
        if self.table is not None:
            return self.table
        return torch.arange(256, dtype=torch.float32, device="cpu").repeat(self.fills.shape[1], 1)

    def _mask_values(self) -> Tensor:
        """(masks, channels) in the result's dtype; for uint8 the bytes whose table value is the fill."""
        if self.dtype != torch.uint8:
            return self.fills.to(self.dtype)
        matches = self._values()[None] == self.fills[:, :, None]
        matched = matches.any(2)
        if not bool(matched.all()):
            mask, channel = (int(i) for i in (~matched).nonzero()[0])
            raise ValueError(f"output=torch.uint8: mask {mask} fills channel {channel} with "
                             f"{float(self.fills[mask, channel])!r}, which is no uint8 pixel's value after the "
                             "transform's ToTensor and Normalize; choose a float output, or a fill that is one")
        return matches.to(torch.uint8).argmax(2).to(torch.uint8)

    @property
    def keeps_bytes(self) -> bool:
        """Whether images are delivered as they are made: uint8, a pixel's channels side by side."""
        return self.dtype == torch.uint8 and self.memory_format == torch.channels_last and not self.sizes

    @property
    def by_table(self) -> tuple[np.ndarray, bool] | None:
        """The table by which the kernel converts bytes into an array of `empty`, and whether the channels come last.

        None if there is no kernel, or if bytes stay bytes.
        """
        if kernel() is None or self.dtype == torch.uint8:
            return None
        return self._bits, self.memory_format == torch.channels_last

    def empty(self, samples: int, height: int, width: int, pool: MemoryPool | None = None) -> np.ndarray:
        """Memory of a result on the CPU: (samples, channels, height, width), or with the channels last, as integers.

        With `sizes` it is flat.

        Without a pool numpy allocates it and asks for huge pages. Small pages take longer to map than the images to compute.
        """
        channels = self.fills.shape[1]
        last = self.memory_format == torch.channels_last
        shape: tuple[int, ...] = (samples, height, width, channels) if last else (samples, channels, height, width)
        if self.sizes:
            shape = (samples * self._numbers,)
        kind = _NUMPY[self.dtype.itemsize]
        return np.empty(shape, kind) if pool is None else pool.empty(shape, kind)

    def tensor(self, bits: np.ndarray) -> Tensor:
        """An array of `empty` as the delivered tensor: (samples, channels, height, width) in this dtype and memory format."""
        result = torch.from_numpy(bits)
        result = result if self.dtype == torch.uint8 else result.view(self.dtype)
        return result.permute(0, 3, 1, 2) if self.memory_format == torch.channels_last and not self.sizes else result

    def convert(self, images: np.ndarray, bits: np.ndarray, first: int = 0) -> None:
        """Convert images, uint8 (samples, height, width, channels), into an array of `empty`, its samples from ``first`` on."""
        if not self.sizes:
            self._convert(images, bits[first : first + len(images)])
            return
        results = list(self._results(bits))
        for k in range(len(images)):  # of a single image each view's bytes lie in one piece
            for view, result in zip(self._bytes(images[k : k + 1]), results, strict=True):
                self._convert(view, result[first + k : first + k + 1])

    def _convert(self, images: np.ndarray, bits: np.ndarray) -> None:
        """Convert images into as many samples of an array that has the shape of one view's results."""
        last = self.memory_format == torch.channels_last
        fast = kernel()
        if self.dtype == torch.uint8 and (last or fast is None):
            for part in _parts(len(images), math.prod(images.shape[1:])):
                np.copyto(bits[part], images[part] if last else images[part].transpose(0, 3, 1, 2))
        elif fast is not None:
            fast.planes(images, bits) if self.dtype == torch.uint8 else fast.table(images, self._bits, bits, last)
        elif self._arithmetic is None or self.dtype != torch.float32:  # two bytes come faster straight from the table
            for part in _parts(len(images), images[0, :, :, 0].size):
                for c, numbers in enumerate(self._bits):
                    plane = bits[part, :, :, c] if last else bits[part, c]
                    np.take(numbers, images[part, :, :, c], out=plane, mode="clip")
        elif last:
            # One row of the image is one row of numbers: the channels' constants repeat along it.
            samples, height, width, channels = images.shape
            rows = (samples, height, width * channels)
            source, values = images.reshape(rows), bits.view(np.float32).reshape(rows)
            constants = self._arithmetic.mean, self._arithmetic.std
            mean, std = (None if k is None else np.tile(k, width) for k in constants)
            for part in _parts(samples, math.prod(rows[1:])):
                self._arithmetic.run(source[part], values[part], mean, std)
        else:
            values = bits.view(np.float32)
            for part in _parts(len(images), images.shape[1] * images.shape[2]):
                for c in range(images.shape[3]):
                    constants = self._arithmetic.mean, self._arithmetic.std
                    mean, std = (None if k is None else k[c] for k in constants)
                    self._arithmetic.run(images[part, :, :, c], values[part, c], mean, std)

    def fill(self, result: Tensor, boxes: np.ndarray) -> None:
        """Fill the masks of the result's samples in place; boxes int32 (samples, masks, 4)."""
        # As integers, with numpy: a box of a small image is filled many times faster than by torch.
        integer = _INTEGER[self.dtype]
        fills = self._mask_values().view(integer).numpy()[:, :, None, None]
        planes = result.view(integer).numpy()
        noise, seeds = self._noise_by_mask
        for i, sample in enumerate(boxes.tolist()):
            for mask, (top, left, bottom, right) in enumerate(sample):
                if top >= bottom or left >= right or mask in seeds:
                    continue
                value = fills[mask]
                if mask in noise:
                    drawn = noise[mask].drawn(sample[mask + 1], len(value), bottom - top, right - left)
                    value = torch.from_numpy(drawn).to(self.dtype).view(integer).numpy()
                planes[i, :, top:bottom, left:right] = value

    @functools.cached_property
    def _noise_by_mask(self) -> tuple[dict[int, Noise], set[int]]:
        """The noise of each mask that has any, and the mask numbers that are seeds and no masks."""
        return {noise.mask: noise for noise in self.noise}, {noise.mask + 1 for noise in self.noise}

    def views(self, result: Tensor, views: int) -> list[Tensor]:
        """The views of a result's samples, each (samples, channels, height, width): parts of the result.

        Args:
            result: of this epilogue.
            views: their number. Without `sizes` the first views of all samples are the first images of the result.
        """
        if not self.sizes:
            return list(result.chunk(views))
        last = self.memory_format == torch.channels_last
        return [view.permute(0, 3, 1, 2) if last else view for view in self._results(result)]

    @property
    def _numbers(self) -> int:
        """The numbers of a sample with views of several sizes."""
        return self.fills.shape[1] * sum(map(math.prod, self.sizes))

    def _results(self, flat: Any) -> Iterator[Any]:
        """The part of each view in a flat result, (samples, channels, height, width), or with the channels last."""
        channels, samples, at = self.fills.shape[1], len(flat) // self._numbers, 0
        for height, width in self.sizes:
            end = at + samples * channels * height * width
            last = self.memory_format == torch.channels_last
            shape = (samples, height, width, channels) if last else (samples, channels, height, width)
            yield flat[at:end].reshape(shape)
            at = end

    def _bytes(self, images: Any) -> Iterator[Any]:
        """The bytes of each view, (samples, height, width, channels), of images whose views lie one after another."""
        samples, channels, at = len(images), images.shape[3], 0
        flat = images.reshape(samples, -1)
        for height, width in self.sizes:
            end = at + height * width * channels
            yield flat[:, at:end].reshape(samples, height, width, channels)
            at = end

    def _on_device(self, images: Tensor) -> Tensor:
        if not self.sizes:
            return self._one_size_on_device(images)
        result = torch.empty(len(images) * self._numbers, dtype=self.dtype, device=images.device)
        for view, place in zip(self._bytes(images), self.views(result, len(self.sizes)), strict=True):
            place.copy_(self._one_size_on_device(view))
        return result

    def _one_size_on_device(self, images: Tensor) -> Tensor:
        planes = images.permute(0, 3, 1, 2)
        if self.dtype == torch.uint8:
            return planes.contiguous(memory_format=self.memory_format)
        if self._arithmetic is not None and self._once("exact", images.device, lambda: self._exact_on(images.device)):
            values = torch.empty(planes.shape, dtype=torch.float32, device=images.device,
                                 memory_format=self.memory_format).copy_(planes)
            return self._arithmetic.run_on_device(values).to(self.dtype)
        values = self._once("values", images.device, lambda: self._values().to(self.dtype).to(images.device))
        result = torch.empty(planes.shape, dtype=self.dtype, device=images.device, memory_format=self.memory_format)
        for c in range(planes.shape[1]):
            result[:, c] = values[c][planes[:, c].to(torch.int32)]
        return result

    @functools.cached_property
    def _kept(self) -> dict[tuple[str, torch.device], Any]:
        """Tensors made for each device; they are freed with this epilogue."""
        return {}

    def _once(self, what: str, device: torch.device, make: Callable[[], Any]) -> Any:
        """Make a tensor at the first call for a device and keep it: each small copy would wait for the large ones before."""
        if (what, device) not in self._kept:
            self._kept[what, device] = make()
        return self._kept[what, device]

    def _exact_on(self, device: torch.device) -> bool:
        """Whether the operations give the table's very bits on this device, for all bytes of all channels."""
        assert self._arithmetic is not None
        table = self._values()
        values = torch.arange(256, dtype=torch.float32, device=device).repeat(1, table.shape[0], 1, 1)
        values = values.view(1, table.shape[0], 1, 256)
        computed = self._arithmetic.run_on_device(values).cpu().view(table.shape)
        return torch.equal(computed.view(torch.int32), table.view(torch.int32))

    def _fill_together(self, result: Tensor, boxes: Tensor) -> Tensor:
        """Fill each mask in all samples by one operation: a GPU is slow to start many small ones. Noise comes from the host."""
        noise, seeds = self._noise_by_mask
        boxes, listed = boxes.to(result.device, non_blocking=True), boxes.tolist() if noise else []
        fills = self._once("fills", result.device, lambda: self._mask_values().to(result.device))
        rows = torch.arange(result.shape[2], device=result.device)
        columns = torch.arange(result.shape[3], device=result.device)
        for mask in range(fills.shape[0]):
            if mask in seeds:
                continue
            if mask in noise:
                for i, sample in enumerate(listed):
                    top, left, bottom, right = sample[mask]
                    if top < bottom and left < right:
                        drawn = noise[mask].drawn(sample[mask + 1], result.shape[1], bottom - top, right - left)
                        result[i, :, top:bottom, left:right] = torch.from_numpy(drawn).to(self.dtype).to(result.device)
                continue
            top, left, bottom, right = boxes[:, mask, :, None].unbind(1)
            inside = ((rows >= top) & (rows < bottom))[:, None, :, None]
            inside = inside & ((columns >= left) & (columns < right))[:, None, None, :]
            result = torch.where(inside, fills[mask].view(1, -1, 1, 1), result)
        return result.contiguous(memory_format=self.memory_format)


def _parts(images: int, numbers: int) -> Iterator[slice]:
    """Parts of a batch that stay in the L2 cache: one large image, or many small ones. ``numbers``: of one plane."""
    step = max(1, _PART // max(1, numbers))
    return (slice(start, start + step) for start in range(0, images, step))


_INTEGER = {torch.uint8: torch.uint8, torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
_NUMPY = {1: np.uint8, 2: np.int16, 4: np.int32}  # by the bytes of a number: numpy has no bfloat16
