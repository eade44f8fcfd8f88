"""An operator file for scripts/auto_check.py (docs/operators.md). It takes as long as it is told, and changes nothing."""

import os
import time

from PIL import Image


def prepare(image: Image.Image, host: int, host_s: float) -> Image.Image:
    """Sleep `host_s` seconds in the process with the id `host`, else as many as the file $DDLP_SLEEP says."""
    if os.getpid() == host:
        time.sleep(host_s)
    else:
        with open(os.environ["DDLP_SLEEP"], encoding="ascii") as file:
            time.sleep(float(file.read()))
    return image
