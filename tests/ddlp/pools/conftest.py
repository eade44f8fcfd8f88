"""Fixtures of the pools' tests: those of the fault tests, which also check what is left behind."""

from __future__ import annotations

from tests.ddlp.faults.conftest import (  # noqa: F401
    data,
    engines,
    gpu_awake,
    images,
    leaves_nothing,
    limited,
    paths,
    script,
    spool,
    told,
    truth,
    zygote,
)
