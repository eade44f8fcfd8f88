"""The delivery of batches: what the training thread does in an epoch."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

from ddlp.auto.controller import Controller
from ddlp.epoch.gpu_prefetch import PendingTransfer
from ddlp.epoch.monitor import Monitor
from ddlp.epoch.step_clock import EventClock
from ddlp.schedule.ledger import Side
from ddlp.sources.base import BatchState, PreparedBatch, Resources

__all__ = ["Delivery"]

WAITING_S = 0.05  # the devices are told of a longer wait, so that they work for this epoch first


class Delivery:
    """The part of an epoch that gives its batches to the training thread. Only that thread calls the methods.

    Args:
        monitor: the state that the epoch's parts share.
        resources: what lives in the epoch.
        tell_waiting: tells the devices that training waits for a batch, or that it does not wait any more.
        controller: decides which devices take part, for a strategy that wants that.
        clock: measures the training steps of an accelerator; None: the time between two batches counts.

    Attributes:
        handing: the last delivered batch, until the iterator gives it to the training loop.
    """

    def __init__(
        self,
        monitor: Monitor,
        resources: Resources,
        tell_waiting: Callable[[bool], None],
        controller: Controller | None = None,
        clock: EventClock | None = None,
    ) -> None:
        self._monitor, self._resources, self._controller, self._clock = monitor, resources, controller, clock
        self._tell_waiting = tell_waiting
        self._told_waiting = False
        self.handing: int | None = None
        self._last_step: tuple[float, float] | None = None  # when training got its last batch, and its part of a full batch

    def next_batch(self, timeout_s: float = 0.0) -> tuple[int, Side, PreparedBatch] | None:
        """Return the next batch, with its position and the side that made it; None once all are delivered.

        If a sample can't be prepared, raises its error once, in its batch's place. Raises RuntimeError after ``timeout_s``
        (0: never), as DataLoader does.
        """
        monitor = self._monitor
        if os.getpid() != monitor.pid:
            raise RuntimeError("this iterator belongs to the parent process; call iter() on the loader in this one")
        began = time.monotonic()
        with monitor.lock:
            try:
                since_last = self._step_ended(began)
                if (position := self._wait(began, timeout_s)) is None:
                    return None
                batch = monitor.ready[position]
                if isinstance(batch, PendingTransfer):
                    batch = batch.there()  # if there is no room this raises, and the batch stays the next one
                self.handing = None if batch.state is BatchState.FAILED else position
                side = monitor.ledger.deliver(position)
                del monitor.ready[position]
                now, samples = time.monotonic(), self._resources.plan.size(position)
                self._last_step = now, samples / monitor.full_batch
                monitor.counts.delivered(position, side, samples, began, now)
                if self._controller is not None:
                    self._decide(self._controller, now - began, since_last)
                if self._clock is not None:
                    self._clock.begins()
                if batch.replaced:  # if it fails, `handing` stays: a state that is saved now has the batch to come
                    batch = self._counted(position, batch)
                monitor.act()
            finally:
                if self._told_waiting:
                    self._told_waiting = False
                    self._tell_waiting(False)
        if batch.state is BatchState.FAILED:
            assert batch.error is not None
            try:
                raise batch.error
            finally:
                del batch  # the error's traceback holds this frame: the cycle would keep the loader
        return position, side, batch

    def _wait(self, began: float, timeout_s: float) -> int | None:
        """Wait for the next batch since ``began``. Returns its position; None once all are delivered."""
        monitor, strategy = self._monitor, self._monitor.strategy
        deadline = began + timeout_s if timeout_s > 0 else math.inf
        while True:
            if monitor.error is not None:
                error, monitor.error = monitor.error, None
                try:
                    raise error
                finally:
                    del error  # its traceback holds this frame: the cycle would keep the loader
            if monitor.ledger.done:
                if monitor.counts.ended_s is None:
                    monitor.counts.over()
                return None
            if monitor.closing:  # the ready batches are gone
                raise RuntimeError("this iteration was closed; call iter() on the loader for a new one")
            if (position := strategy.next_delivery()) is not None:
                return position
            now = time.monotonic()
            if (late := strategy.late_device(now)) is not None:
                self._too_late(late)
            if strategy.hanging_fetch(now) is not None:
                monitor.act()
            if now >= deadline:
                raise RuntimeError(f"DataLoader timed out after {timeout_s} seconds")
            if not self._told_waiting and now - began >= WAITING_S:
                self._told_waiting = True
                self._tell_waiting(True)
            monitor.counts.asked_s = began
            look_up_s = monitor.LOOK_UP_S if self._told_waiting else WAITING_S
            monitor.wait(monitor.training, min(look_up_s, max(0.0, deadline - now)))

    def _step_ended(self, now: float) -> tuple[float | None, float]:
        """Note that training asks for a batch.

        Returns the seconds since it got the one before (None: it is the first) and the size of that, as a part of a full one.
        """
        if self._last_step is None:
            return None, 0.0
        began_s, part = self._last_step
        self._last_step = None
        if self._clock is None:
            self._monitor.rates.trained(now - began_s, part)
        else:
            self._clock.ends(part)
            for step in self._clock.done():
                self._monitor.rates.trained(*step)
        return now - began_s, part

    def _too_late(self, name: str) -> None:
        """Stop waiting for a device that takes too long to join. It is used all the same once it joins."""
        self._monitor.ledger.no_longer_expect(name)
        self._monitor.messages.warn(f"device {name} is not ready yet; the host prepares its batches until it is.")
        self._monitor.act()

    def _decide(self, controller: Controller, waited_s: float, since_last: tuple[float | None, float]) -> None:
        """Let the controller note a batch, and tell what it has decided."""
        monitor, engines, before = self._monitor, controller.engines, controller.offloads
        news = controller.delivered(waited_s, *since_last)
        if news is not None:
            monitor.messages.advise(news)
        if news is not None or controller.offloads != before:
            monitor.hooks.decided("devices", news or controller.note())
        if controller.scaler is not None and controller.engines != engines:
            why = f"{controller.engines} wanted instead of {engines}: {controller.scaler.why}"
            monitor.counts.changed("pool", why)
            monitor.hooks.decided("engines", why)

    def _counted(self, position: int, batch: PreparedBatch) -> PreparedBatch:
        """Count the replaced samples of a delivered batch. Returns the batch; a failed one if they are too many by now."""
        replaced = self._monitor.counts.replaced
        if (warning := replaced.add(position, batch.replaced)) is not None:
            self._monitor.messages.warn(warning)
        error = replaced.error
        return batch if error is None else PreparedBatch.failed(error)

    def extend(self, batches: int, ended: bool) -> None:
        """Note that the sampler gave further batches, or has ended."""
        monitor = self._monitor
        with monitor.lock:
            if batches:
                monitor.rates.first_batches(self._resources.plan.largest)  # before the first of them is made
            monitor.ledger.extend(batches)
            if ended:
                monitor.ledger.close()
            monitor.act()

    def take_messages(self) -> tuple[list[str], list[str]]:
        """Return the warnings, and the advice, that the training thread should give to the user, each once."""
        monitor = self._monitor
        if not monitor.messages:  # the usual case: saves taking the lock
            return [], []
        with monitor.lock:
            return monitor.messages.take(time.monotonic(), monitor.ledger.done), monitor.messages.take_advice()
