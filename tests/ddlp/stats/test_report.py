"""What an epoch's report says to people."""

from ddlp.stats.report import EpochReport

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
        "note      csd0: <no> shared spool",
    ]
    assert repr(REPORT).startswith("EpochReport(strategy='wrr'")


def test_before_the_first_batch_nothing_is_divided_by() -> None:
    assert "not measured" in str(EpochReport("cpu", 0, 0, 0, 0, 0.0, 0.0, 0.0, None, None))


def test_notebooks_show_a_table_and_no_markup_of_a_note() -> None:
    html = REPORT._repr_html_()
    assert html.startswith("<table>") and "&lt;no&gt;" in html and "<no>" not in html
