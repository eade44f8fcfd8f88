"""What `strategy="auto"` remembers of a run for the next run of the same: `ddlp.auto.store`, by a loader's parts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch.utils.data import DataLoader

from csd_engine.machine.computer import cpu_model, processors
from ddlp.auto.controller import Controller
from ddlp.auto.fingerprints import dataset_text, host_text, pipeline_text, sources_text
from ddlp.auto.measured import Measured
from ddlp.auto.store import Key, Store
from ddlp.config import LoaderConfig
from ddlp.process.ranks import here
from ddlp.process.user_warnings import advise_user
from ddlp.process.version import __version__
from ddlp.translate.portable import Portable

__all__ = ["Remembered"]


@dataclass
class Remembered:
    """The place of one loader's measurements in the user's store."""

    key: Key
    store: Store = field(default_factory=Store)
    _kept: Measured | None = None
    _told: bool = False

    @classmethod
    def of(cls, loader: DataLoader, config: LoaderConfig, portable: Portable, model: str) -> Remembered:
        """Return the place for a loader. ``model``: a name of what is trained; empty: none was given."""
        parts, samples = portable.dataset.parts, portable.dataset.some_places()
        sources = [(device.label, __version__, device.address) for device in config.engine_devices]
        sources += [(source.name, type(source).__qualname__, "") for source in config.own_sources]
        sources += [] if config.pool is None else [("pool", __version__, repr(config.pool))]
        settings = (loader.num_workers, loader.prefetch_factor, config.backend, config.transfer, config.own_steps)
        epilogue = (str(portable.epilogue.dtype), portable.views, portable.rest is None, config.decode)
        ranks = here()
        return cls(
            Key(
                dataset_text(", ".join(part.name for part in parts), len(portable.dataset), repr(samples)),
                pipeline_text(portable.pipeline.to_data(), str(epilogue)),
                str(loader.batch_size),
                model,
                host_text(
                    processors(), cpu_model(), ranks=1 if ranks is None else ranks.local_ranks,
                    accelerator=str(config.target or ""), software=f"ddlp {__version__}, {settings}",
                ),
                sources_text(sources or [("embedded engine", __version__, "")]),
            )
        )  # fmt: skip

    def recall(self, controller: Controller) -> None:
        """Let a controller begin with what an earlier run has measured, if it is there."""
        self._kept = self.store.get(self.key)
        self._tell()
        if self._kept is not None:
            controller.know(self._kept)

    def keep(self, controller: Controller) -> None:
        """Keep what a controller has measured, if it is new. Sources that made training slower are left out."""
        measured = controller.measured
        if measured is not None and controller.stopped:
            measured = replace(measured, paths=())
        if measured is not None and measured != self._kept:
            self.store.put(self.key, measured)
            self._kept = measured
            self._tell()

    def _tell(self) -> None:
        if self.store.note and not self._told:
            self._told = True
            advise_user(f"ddlp: {self.store.note}")
