"""An engine whose operator sleeps, so that a test decides how fast it is."""

from __future__ import annotations

from pathlib import Path

from csd_engine.prepare.operator_file import content_hash
from tests.engine_process import EngineProcess

OPERATOR = Path(__file__).with_name("sleeping_operator.py")


class SleepingEngine:
    """An engine process. ``sleep_s``: seconds that it takes for a sample."""

    def __init__(self, home: Path, sleep_s: float) -> None:
        home.mkdir()
        (home / "sleep").write_text(repr(sleep_s))
        (home / "root").mkdir()
        operators = home / "operators"
        operators.mkdir(mode=0o700)
        (operators / f"{content_hash(OPERATOR.read_bytes())}.py").write_bytes(OPERATOR.read_bytes())
        within = ("env", f"DDLP_SLEEP={home / 'sleep'}")
        self.process = EngineProcess(home, "--operators", str(operators), "--root", str(home / "root"), within=within)

    def end(self) -> None:
        """SIGTERM."""
        self.process.end()
