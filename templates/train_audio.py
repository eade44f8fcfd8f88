r"""Train a network to tell spoken words apart by their mel spectrograms. The preparation is code of one's own, on a pool too.

    python templates/train_audio.py --small                                       # seconds, on any machine
    python templates/train_audio.py --data SpeechCommands/speech_commands_v0.02 --epochs 20 --workers 4 --pool 8
    python templates/train_audio.py --data SpeechCommands/speech_commands_v0.02 --strategy dataloader cpu wrr --pool 8

--data is a directory with WORD/*.wav (16-bit, mono) and validation_list.txt, as Google's Speech Commands has them
(torchaudio.datasets.SPEECHCOMMANDS(root=..., download=True) fetches it); the files in testing_list.txt are left out. A data set
of one's own can't travel to a device, but --pool N runs it in N further processes under wrr. For other machines
`ddlp.RayPool(user_code=True)` is the pool.
"""

from __future__ import annotations

import math
import sys
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from common import flags, parse
from training import Task, compare

RATE, SECONDS = 16_000, 1.0
WINDOW, HOP, MELS = 400, 160, 64  # 25 ms every 10 ms
MODELS = ("cnn",)
SMALL_WORDS, SMALL_FILES, SMALL_SECONDS = ("down", "up", "high", "low"), 48, 0.25


class NoSuchData(Exception):
    """--data is not as it should be; the message says how."""


class Words(Dataset):
    """Recordings of words: a (1, MELS, frames) log-mel spectrogram and the word's number.

    Args:
        root: the directory with WORD/*.wav.
        files: paths relative to it, such as bed/00f0204f_nohash_0.wav.
        words: the classes, in their order.
        train: draw a shift of up to 0.1 s, and hide a band and a time (SpecAugment: Park et al., arXiv 1904.08779).
        seconds: each recording is cut or filled with silence to this length.
    """

    def __init__(self, root: Path, files: Sequence[str], words: Sequence[str], train: bool, seconds: float) -> None:
        self.root, self.files, self.words, self.train = root, list(files), list(words), train
        self.samples = int(RATE * seconds)
        self.window, self.filters = torch.hann_window(WINDOW), mel_filters()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        name = self.files[index]
        sound = read(self.root / name)[: self.samples]
        sound = nn.functional.pad(sound, (0, self.samples - len(sound)))
        if self.train:
            sound = sound.roll(int(torch.randint(-RATE // 10, RATE // 10 + 1, ())))
        power = torch.stft(sound, 512, HOP, WINDOW, self.window, return_complex=True).abs() ** 2
        mels = (self.filters @ power + 1e-6).log()
        if self.train:
            for size, most in ((MELS, 12), (mels.shape[1], mels.shape[1] // 8)):
                width = int(torch.randint(most + 1, ()))
                first = int(torch.randint(size - width + 1, ()))
                mels.narrow(0 if size == MELS else 1, first, width).fill_(mels.mean())
        return ((mels - mels.mean()) / mels.std())[None], self.words.index(name.split("/")[0])


def read(path: Path) -> Tensor:
    """Return a 16-bit mono recording as float32, -1 to 1. Raises ValueError for another format."""
    with wave.open(str(path)) as file:
        if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, RATE):
            raise ValueError(f"{path}: expected 16 bits, one channel, {RATE} Hz")
        return torch.frombuffer(bytearray(file.readframes(file.getnframes())), dtype=torch.int16) / 2**15


def mel_filters() -> Tensor:
    """Return (MELS, 257) triangles, evenly spaced in mels: m = 2595 log10(1 + f / 700), O'Shaughnessy 1987."""
    edges = 700 * (10 ** (torch.linspace(0, 2595 * math.log10(1 + RATE / 2 / 700), MELS + 2) / 2595) - 1)
    bins = torch.linspace(0, RATE / 2, 257)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp_min(0)


def split(root: Path) -> tuple[list[str], list[str], list[str]]:
    """Return the words, the train files and the validation files. Raises NoSuchData if there are none."""
    files = sorted(path.relative_to(root).as_posix() for path in root.glob("[!_]*/*.wav"))  # _background_noise_ is no word
    left_out = set(_lines(root / "testing_list.txt"))
    listed = set(_lines(root / "validation_list.txt"))
    train = [name for name in files if name not in listed and name not in left_out]
    val = [name for name in files if name in listed]
    if not train or not val:
        raise NoSuchData(f"{root}: a directory with WORD/*.wav and validation_list.txt, which names some of them")
    return sorted({name.split("/")[0] for name in files}), train, val


def _lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def make_small(root: Path) -> Path:
    """Write four "words", tones that rise, fall or stay, and return the directory. The same files each time."""
    listed = []
    times = np.arange(int(RATE * SMALL_SECONDS)) / RATE
    for number, word in enumerate(SMALL_WORDS):
        (root / word).mkdir(parents=True, exist_ok=True)
        slope = {"down": -4000.0, "up": 4000.0}.get(word, 0.0)
        for k in range(SMALL_FILES):
            random = np.random.default_rng(1000 * number + k)
            begin = {"down": 2000, "up": 800, "high": 2500, "low": 500}[word] * random.uniform(0.9, 1.1)
            sound = np.sin(2 * np.pi * (begin + slope * times / 2) * times) + 0.3 * random.standard_normal(len(times))
            with wave.open(str(root / word / f"{k:02}.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(RATE)
                file.writeframes((sound / 3 * 32767).clip(-32768, 32767).astype("<i2").tobytes())
            if k % 4 == 3:
                listed.append(f"{word}/{k:02}.wav")
    (root / "validation_list.txt").write_text("\n".join(listed) + "\n")
    return root


def make_model(classes: int, width: int) -> nn.Module:
    """Return a small convolutional network for (N, 1, MELS, frames)."""
    layers: list[nn.Module] = []
    before = 1
    for channels in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(before, channels, 3, 2, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def make_optimizer(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Return AdamW."""
    return torch.optim.AdamW(model.parameters(), lr, weight_decay=0.01)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, compare, report."""
    parser = flags(__doc__, MODELS, strategies=("cpu",))
    options = parse(parser, {"cnn": 128}, arguments)
    if options.data is None and not options.small:
        parser.error("--data: the directory of Speech Commands; or --small")
    seconds = SMALL_SECONDS if options.small else SECONDS
    try:
        root = options.data or make_small(Path("data/tones"))
        words, train, val = split(root)
    except NoSuchData as error:
        raise SystemExit(f"train_audio: --data {error}") from None
    task = Task(
        template="train_audio",
        model_name=options.model + (" (small)" if options.small else ""),
        pipeline="log-mel",
        train=Words(root, train, words, True, seconds),
        val=Words(root, val, words, False, seconds),
        model=lambda: make_model(len(words), 8 if options.small else 32),
        optimizer=make_optimizer,
        lr=1e-2 if options.small else 1e-3 * max(1.0, options.batch_size / 128),
        channels_last=False,
        own_code=True,
    )
    return compare(task, options)


if __name__ == "__main__":
    sys.exit(main())
