"""The memory of an engine's processes beyond interpreters with the same imports. The host reads it, for a board too."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue

from PIL import Image

from csd_engine.batchfile.reader import Layout, identity
from csd_engine.data.base import fingerprint
from csd_engine.data.files import FileSet
from csd_engine.data.manifest import write_manifest
from csd_engine.machine.computer import process_memory
from csd_engine.protocol import codec as say
from ddlp.deploy.prove import standard_pipeline
from ddlp.sources.engine.link import EngineLink
from tests.engine_process import EPOCH, SEED, children, wait_for

LIMIT_BYTES = 100_000_000
IMAGENET_FILES = 1_281_167
SERVICE_IMPORTS = "import csd_engine.__main__, csd_engine.service.engine, csd_engine.service.members"
WORKER_IMPORTS = "import csd_engine.service.worker"


def processes(marker: str) -> list[int]:
    """Ids, on this host, of the processes whose command line contains the text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes().replace(b"\0", b" "):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def with_children(pid: int) -> list[int]:
    return [pid, *children(pid)]


class Peak:
    """While the block runs, samples the resident and private bytes of several processes together."""

    def __init__(self, pids: Callable[[], Sequence[int]]) -> None:
        self._pids = pids
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.resident = self.private = self.samples = 0

    def _watch(self) -> None:
        while not self._stop.wait(0.02):  # the largest image is in memory for longer than that
            resident, private = process_memory(self._pids())
            self.resident, self.private = max(self.resident, resident), max(self.private, private)
            self.samples += 1

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Images:
    """A data set of `count` names below `root`, which repeats few images. Some of them are very large."""

    def __init__(self, root: Path, manifest: Path, count: int, ordinary_pixels: int = 1 << 20) -> None:
        names = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.suffix in (".jpg", ".png"))
        self.manifest, self._pixels = manifest, []
        for name in names:
            with Image.open(root / name) as image:
                self._pixels.append(image.width * image.height)
        self.largest = max(range(len(names)), key=self._pixels.__getitem__)
        self.ordinary = [number for number, pixels in enumerate(self._pixels) if pixels < ordinary_pixels]
        repeated = (names * (count // len(names) + 1))[:count]
        self.dataset = FileSet(str(root), write_manifest(manifest, repeated), count)
        self._names = len(names)

    def pixels(self, index: int) -> int:
        return self._pixels[index % self._names]

    def items(self, batch: int, chance: random.Random) -> list[tuple[int, int]]:
        """Ordinary images from the whole data set, and the largest one at a few positions."""
        rounds = self.dataset.count // self._names
        spread = [chance.choice(self.ordinary) + self._names * chance.randrange(rounds) for _ in range(batch)]
        for place in range(0, batch, max(1, batch // 3)):
            spread[place] = self.largest
        return [(index, place) for place, index in enumerate(spread)]


def work(link: EngineLink, images: Images, batches: Sequence[int], timeout_s: float) -> None:
    """Let the engine make batches of these sizes. All must succeed."""
    events: SimpleQueue = SimpleQueue()
    pipeline = standard_pipeline()  # ImageNet1
    job = link.open_job(pipeline, images.dataset, Layout(max(batches), 224, 224, 3), lambda _: images.manifest, events.put)
    chance = random.Random(0)
    for number, batch in enumerate(batches):
        items = images.items(batch, chance)
        job.send_lease(number, identity(pipeline.digest, fingerprint(images.dataset), SEED, EPOCH, items), SEED, EPOCH, items)
    for _ in batches:
        event = wait_for(events, (say.Published, say.Failed), timeout_s)
        assert isinstance(event, say.Published), event.reason
        job.release(event.lease)
    job.close(5)
