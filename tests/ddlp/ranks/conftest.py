"""Fixtures of the ranks' tests: those of the fault tests that run scripts."""

from tests.ddlp.faults.conftest import images, script, zygote  # noqa: F401
