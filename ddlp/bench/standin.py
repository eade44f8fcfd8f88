"""An operator file (docs/operators.md) whose one function takes the time that preparing a batch takes, and leaves the image."""

import os
import time

from PIL import Image


def prepare(image: Image.Image, host: int, host_s: float, device_s: float) -> Image.Image:
    """Take `host_s` seconds in the process of this id, `device_s` in any other: in an engine's worker."""
    time.sleep(host_s if os.getpid() == host else device_s)
    return image
