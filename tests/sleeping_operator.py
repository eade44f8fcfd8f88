"""An operator file for tests (docs/operators.md). It takes as long as it is told, and changes nothing."""

import os
import time

from PIL import Image


def prepare(image: Image.Image, host_s: float) -> Image.Image:
    """Sleep `host_s` seconds on the host; in an engine, which has $DDLP_SLEEP, as many as that file says."""
    if "DDLP_SLEEP" in os.environ:
        with open(os.environ["DDLP_SLEEP"], encoding="ascii") as file:
            time.sleep(float(file.read()))
    else:
        time.sleep(host_s)
    return image
