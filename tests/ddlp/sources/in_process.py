"""`InProcess`, a lease source in this process. Its code is taken from docs/extending.md, so that there is only one copy."""

from __future__ import annotations

from typing import Any

from tests.scripts.test_extending import code_of

exec(code_of("A source").partition("\nimages = ")[0], globals())  # without its example; the classes here can be pickled

InProcess: Any = globals()["InProcess"]
Leases: Any = globals()["Leases"]
