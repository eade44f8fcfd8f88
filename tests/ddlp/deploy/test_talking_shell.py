"""A device whose login shell prints something before every command, like an echo in ~/.bashrc."""

from __future__ import annotations

from collections.abc import Callable

from tests.ddlp.deploy.local_device import Device, ddlp


def test_what_a_login_shell_says_is_nobody_s_answer(make_device: Callable[..., Device], capsys) -> None:
    device = make_device('ForceCommand echo "Orange Pi: 3 updates"; eval "$SSH_ORIGINAL_COMMAND"')
    told = ddlp(capsys, *device.arguments("--kernel", "cross"))  # no compiler, no kernel: no change either
    assert "does not work there" not in told and "both see the same" in told
    engine = device.engine()
    assert "Nothing had to be changed." in ddlp(capsys, "deploy", "--name", "csd0") and device.engine() == engine
    said = ddlp(capsys, "doctor", "csd0")
    assert "both see the same" in said and "operators and decoders make the same pixels" in said and "lingering" not in said
    assert "operators and decoders make the same pixels, 0 differ." in ddlp(capsys, "parity", "csd0")
    bench = ["bench", "engine", "csd0", "--rounds", "1", "--seconds", "0.1", "--batch", "4"]
    assert "bare Pillow loop" in ddlp(capsys, *bench)
    assert ddlp(capsys, "stop", "csd0") == "csd0 is stopped\n"
    assert ddlp(capsys, "stop", "csd0") == "csd0 did not run\n"
