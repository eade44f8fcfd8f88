"""An epoch's report as text for people."""

from dataclasses import replace

from ddlp.stats.report import EpochReport
from ddlp.stats.waiting import Ceiling

REPORT = EpochReport(
    "wrr", 2, 30, 10, 1280, 10.0, 1.5, 8.0, 96.0, 32.0, ("csd0: <no> shared spool",), {"start": 0.5, "host": 1.0, "csd": 0.0}, 3
)


def test_it_reads_as_text() -> None:
    assert str(REPORT).splitlines() == [
        "epoch 2, wrr: 1,280 samples in 10.00 s, 128 samples/s",
        "batches   30 by this host, 10 by devices",
        "waiting   1.50 s, 15% of the time: start 0.50 s, host 1.00 s",
        "alone     this host 96 samples/s, devices 32 samples/s",
        "bound     10.00 s, the least time for these samples at these rates",
        "host CPU  8.00 s of processor time",
        "leases    3 taken back by this host, 0 lost",
        "verdict   Training waits for data 11 % of the time: by the time between two batches a step takes 212 ms (4.71 "
        "batches/s); batches come at 4.21 a second. By this measure, at most 1.12 times as fast without waiting, 1.12 with a "
        "device as fast as this host. loader.replay() measures the step itself. The wait for the first batch, 500 ms, comes on "
        "top.",
        "note      csd0: <no> shared spool",
    ]
    assert repr(REPORT).startswith("EpochReport(strategy='wrr'")


def test_the_verdict_knows_devices_workers_and_a_replay() -> None:
    known = replace(REPORT, devices={"csd0": 32.0}, workers=4, processors=6, ceiling=Ceiling(0.1, 95))
    text = str(known.verdict)
    assert "a step alone takes 100 ms (10 batches/s, replayed), 212 ms while data are loaded" in text
    assert text.index("num_workers=6") < text.index("a second device like csd0") and "loader.replay" not in text
    assert text in str(known) and text in known._repr_html_()
    of_devices = replace(known, batches_cpu=0, batches_csd=40)  # more host workers would change nothing
    assert [one.name for one in of_devices.verdict.remedies] == ["a second device like csd0"]


def test_before_the_first_batch_nothing_is_divided_by() -> None:
    assert "not measured" in str(EpochReport("cpu", 0, 0, 0, 0, 0.0, 0.0, 0.0, None, None))


def test_notebooks_show_a_table_and_no_markup_of_a_note() -> None:
    html = REPORT._repr_html_()
    assert html.startswith("<table>") and "&lt;no&gt;" in html and "<no>" not in html
