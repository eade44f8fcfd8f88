from __future__ import annotations

import json
import random
from dataclasses import asdict

import pytest

from benchmarks.papers.decisions import measure, random_workload
from csd_engine.protocol.schema import Misfit
from ddlp.auto.measured import Measured, OffloadPath

PATHS = (
    OffloadPath("csd0", 2.5, bytes_per_batch=38_535_168, spool_bytes=0.0, workers=4),
    OffloadPath("csd1", 1 / 3, "spool", host_cpu_s_per_batch=0.0),
    OffloadPath("gerät", 1e-9, carried=True),
)


@pytest.mark.parametrize(
    "measured",
    [
        Measured(),
        Measured(0.1, 8.25, 0.9, 7.5, 1e9, PATHS),
        *(measure(random_workload(random.Random(seed)), random.Random(seed)) for seed in range(20)),
    ],
)
def test_what_was_written_is_read(measured):
    assert Measured.from_data(json.loads(json.dumps(asdict(measured)))) == measured


def test_figures_that_are_missing_are_not_known():
    assert Measured.from_data({"step_s": 2}) == Measured(step_s=2)
    assert Measured.from_data({"paths": [{"source": "csd0", "batches_per_s": 2}]}) == Measured(paths=(OffloadPath("csd0", 2),))


def changed(name: str, value: object) -> str:
    data = json.loads(json.dumps(asdict(Measured(0.1, 8.25, 0.9, 7.5, 1e9, PATHS))))
    if name in data:
        data[name] = value
    else:
        data["paths"][0][name] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    "text, says",
    [
        ("3", "Measured is 3; it must be an object"),
        ("[]", "it must be an object"),
        ('{"step": 1}', "Measured has a field 'step' that is not known"),
        ('{"paths": [{}]}', "OffloadPath has no source"),
        ('{"paths": {}}', "a list"),
        (changed("carried", 1), "carried is 1; it must be true or false"),
        (changed("bytes_per_batch", 0), "a number from 1e-300"),
        ('{"paths": [{"source": "a"}]}', "OffloadPath has no batches_per_s"),
        ('{"step_s": NaN}', "a number from"),
        ('{"step_s": Infinity}', "a number from"),
        ('{"step_s": 1' + "0" * 400 + "}", "a number from"),
        (changed("step_s", "0.1"), "Measured: step_s is '0.1'; it must be a number from"),
        (changed("step_s", True), "a number from"),
        (changed("step_s", -1), "a number from"),
        (changed("step_s", 0), "Measured: step_s is 0; it must be a number from 1e-300"),
        (changed("source", None), "a text"),
        (changed("transport", "pigeon"), "transport is 'pigeon'; it must be spool or stream"),
        (changed("workers", 2.5), "an integer from 1"),
        (changed("workers", None), "an integer from 1"),
        (changed("spool_bytes", "much"), "a number from"),
        (changed("batches_per_s", None), "a number from"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(text, says):
    with pytest.raises(Misfit) as misfit:
        Measured.from_data(json.loads(text))
    assert says in str(misfit.value) and len(str(misfit.value)) < 300
