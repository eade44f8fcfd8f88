"""Progress on a real terminal (a pty) and elsewhere: what it draws, what it leaves, and that it does not disturb the loop."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import io
import os
import re
import signal
import struct
import termios
import threading
import time
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from tqdm import tqdm

from ddlp import DDLPLoader
from ddlp.epoch.iterator import EpochIterator
from ddlp.observe import progress
from ddlp.observe.bars import _Lines, figures
from ddlp.observe.pace import Pace
from ddlp.stats.live import Live, Sums
from ddlp.stats.report import CAUSES, EpochReport
from tests.ddlp.observe.small_loader import small
from tests.engine_process import until
from tests.needs import lacks


class Terminal:
    """A pty, 120 columns wide, and what was written to it."""

    def __init__(self) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.file = os.fdopen(slave, "w")
        self._said: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the other end was closed
            while said := os.read(self._master, 65536):
                self._said.append(said)

    def end(self) -> str:
        """Everything that was written, with control characters."""
        self.file.close()
        self._reader.join()
        os.close(self._master)
        return b"".join(self._said).decode()


def screen(said: str) -> list[str]:
    """The lines that are visible at the end: what follows a carriage return overwrites a line."""
    lines = []
    for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said).replace("\r\n", "\n").split("\n"):
        stands = ""
        for part in line.split("\r"):
            stands = part + stands[len(part) :]
        lines.append(stands.rstrip())
    return lines


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm")  # whatever terminal the tests run in
    try:
        made = Terminal()
    except FileNotFoundError:
        lacks("pseudo-terminals", "mount devpts at /dev/pts")
    yield made
    made.file.close()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No bar may stay in tqdm's list, which would move the next one down a line."""
    yield
    gc.collect()
    assert not list(getattr(tqdm, "_instances", ()))


# -- a terminal ----------------------------------------------------------------------------------------------------------


def test_tqdm_draws_both_sides(data, terminal):
    loader = DDLPLoader(data, 4, strategy="csd", seed=0)
    for epoch in range(2):
        seen = 0
        for images, _ in progress(loader, f"epoch {epoch}", file=terminal.file):
            seen += len(images)
            time.sleep(0.02)
        assert seen == 80
    said = terminal.end()
    assert said.count("\n") == 2 and said.count("\r") > 6
    first, second, nothing = screen(said)
    assert nothing == ""
    for number, line in enumerate((first, second)):
        words = r"[\d.]+ img/s, \d+% of bound, csd 100%, waiting \d+%( \(\w+\))?"
        form = rf"epoch {number}: 100%\|█+\| 20/20 \[\d\d:\d\d<00:00, {words}\]"
        assert re.fullmatch(form, line), line
    shown = [int(n) for n in re.findall(r"(\d+)/20 ", said.split("\n")[0])]
    assert shown == sorted(shown) and shown[0] == 0 and 20 in shown and len(set(shown)) > 3


def test_what_the_loop_prints_goes_where_it_went(terminal, capsys):
    for k, _ in enumerate(progress(small(), file=terminal.file)):
        print(f"step {k}")
    assert capsys.readouterr().out.split("\n")[:2] == ["step 0", "step 1"]
    assert "step" not in terminal.end()


def test_a_bar_without_a_total(terminal):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(torch.zeros(10))

    assert len(list(progress(DDLPLoader(Stream(), 2), file=terminal.file))) == 5
    assert screen(terminal.end())[0].startswith("5 batches [00:0")


def test_leave_false_leaves_nothing(terminal):
    list(progress(small(), leave=False, file=terminal.file))
    said = terminal.end()
    assert "\n" not in said and screen(said) == [""]


def test_a_dumb_terminal_gets_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    list(progress(small(), file=terminal.file))
    assert terminal.end().replace("\r\n", "\n").count("\r") == 0


# -- no terminal ---------------------------------------------------------------------------------------------------------


def test_without_a_terminal_there_are_few_plain_lines(data):
    file = io.StringIO()
    list(progress(DDLPLoader(data, 4, strategy="csd"), "epoch 1", file=file))
    said = file.getvalue()
    assert said.isprintable() or set(said) & set(map(chr, range(32))) == {"\n"}
    words = r"[\d.]+ img/s, \d+% of bound \(\d+ img/s\), host 0%, csd 100%, waiting \d+%.*"
    form = rf"epoch 1: (\d+)/20 batches, 0:\d\d min, {words}"
    done = [int(re.fullmatch(form, line)[1]) for line in said.splitlines()]
    assert done.count(20) == 1 and len(done) < 4, said  # more lines than that only if it takes 5 s


def test_lines_come_more_seldom_with_time():
    file, live, pace = io.StringIO(), some_live(), Pace(1.0, 5.0, dict.fromkeys(CAUSES, 0.0))
    lines = _Lines("x", 100, file)
    pauses = []
    for done in range(6):
        pauses.append(lines.pause_s)
        lines.show(done, live, pace)
    assert pauses == [5, 10, 20, 40, 60, 60] and len(file.getvalue().splitlines()) == 6


def test_standard_error_is_where_it_goes(capsys):
    list(progress(small()))
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("12/12 batches")


# -- the loop ------------------------------------------------------------------------------------------------------------


def test_the_same_batches_and_length():
    shown = progress(small(), file=io.StringIO())
    assert len(shown) == 12
    for _ in range(2):
        assert sum(1 for _ in shown) == 12
    with pytest.raises(TypeError):
        len(progress(iter([1])))


def test_break_ends_the_bar_and_the_epoch(terminal):
    for k, _ in enumerate(progress(small(200), file=terminal.file)):
        if k == 3:
            break
    assert screen(terminal.end())[0].startswith("  3%|") and not list(getattr(tqdm, "_instances", ()))
    until(lambda: not [t for t in threading.enumerate() if t.name in ("ddlp-0", "ddlp-1")], 30, "the epoch's threads' end")


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_in_the_loop(terminal, error):
    with pytest.raises(error):
        for k, _ in enumerate(progress(small(200), file=terminal.file)):
            if k == 2:
                if error is KeyboardInterrupt:
                    signal.raise_signal(signal.SIGINT)
                raise error
    said = terminal.end()
    assert "2/100" in screen(said)[0] and said.count("\n") == 1


def test_ctrl_c_while_it_waits(delays, terminal):
    loader = delays.loader(4, strategy="cpu", host_s=0.5)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        list(progress(loader, file=terminal.file))
    assert screen(terminal.end())[0].startswith("  0%|")


def test_after_a_bad_sample_it_goes_on(data, tmp_path):
    data = type(data)([*data.paths[:6], str(tmp_path / "gone.jpg")], list(range(7)), data.transform)
    file = io.StringIO()
    iterator, errors, batches = iter(progress(DDLPLoader(data, 2, seed=0), file=file)), 0, 0
    while True:
        try:
            next(iterator)
            batches += 1
        except StopIteration:
            break
        except FileNotFoundError:
            errors += 1
    assert (errors, batches) == (1, 3) and file.getvalue().startswith("4/4 batches")
    with pytest.raises(StopIteration):
        next(iterator)
    assert file.getvalue().count("\n") == 1


def test_it_keeps_no_batch():
    iterator = iter(progress(small(), file=io.StringIO()))
    images, _ = next(iterator)
    gone = weakref.ref(images)
    del images, _
    assert gone() is None


def test_a_resumed_epoch_goes_on_where_it_was(terminal):
    loader = small()
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    resumed = small()
    resumed.load_state_dict(loader.state_dict())
    assert len(list(progress(resumed, file=terminal.file))) == 7
    said = terminal.end()
    assert "| 5/12 [" in said and screen(said)[0].startswith("100%")


def test_other_loaders_are_counted():
    file = io.StringIO()
    for batches in (
        DataLoader(torch.zeros(10, 3), 4),
        DDLPLoader([torch.zeros(3)] * 10, 4),
        DataLoader(torch.zeros(3, 3), batch_size=None),
        [torch.zeros(4, 2), torch.zeros(2, 2), torch.zeros(1)],
    ):
        assert len(list(progress(batches, file=file))) == 3
    said = re.sub(r"[\d.,]+( img|% of)", r"N\1", re.sub(r"waiting.*", "waiting", file.getvalue())).splitlines()
    counted = "3/3 batches, 0:00 min, N img/s, waiting"
    assert said == [counted, counted.replace("waiting", "N% of bound (N img/s), waiting"), counted, counted]


# -- ranks, options ------------------------------------------------------------------------------------------------------


def test_of_several_ranks_the_first_one_shows(monkeypatch):
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    said = {}
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        for disable in (None, False, True):
            file = io.StringIO()
            iterator = iter(progress(small(), "epoch 1", disable=disable, file=file))
            assert (type(iterator) is EpochIterator) is (disable is True or (disable is None and rank == 1))
            assert len(list(iterator)) == 12
            said[rank, disable] = file.getvalue()
    assert {key for key, text in said.items() if text} == {(0, None), (0, False), (1, False)}
    assert said[0, None].startswith("epoch 1 (rank 0 of 2): 12/12") and "rank 1 of 2" in said[1, False]


def some_live(**options) -> Live:
    waiting = dict.fromkeys(CAUSES, 0.0)
    report = EpochReport("wrr", 0, 71, 29, 6400, 10.0, 1.0, 8.0, 600.0, 477.0, waiting=waiting)
    return Live(report, Sums(epochs=1), **options)


def test_what_is_said():
    pace = Pace(10.0, 1034.0, {"start": 0.0, "host": 0.01, "csd": 0.06, "transfer": 0.0})
    assert figures(some_live(), pace) == "1034 img/s, 96% of bound, csd 29%, waiting 7% (csd)"
    assert figures(some_live(), pace, long=True) == (
        "1034 img/s, 96% of bound (1077 img/s), host 71%, csd 29%, waiting 7% (csd)"
    )
