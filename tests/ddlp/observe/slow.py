"""An operator file whose function sleeps, and logs how long it really slept: sleeps are never exact."""

import os
import threading
import time

from PIL import Image


def slow(image: Image.Image, log: str, host: int, host_s: float, device_s: float) -> Image.Image:
    """Sleep `host_s` in the process with this id, and `device_s` in an engine's worker."""
    began = time.monotonic()
    time.sleep(host_s if os.getpid() == host else device_s)
    here = threading.current_thread().name
    if here.startswith("ddlp-attach"):  # samples that the host compares with a device's belong to no batch
        return image
    with open(f"{log}.{'host' if os.getpid() == host else 'device'}", "a") as file:
        file.write(f"{time.monotonic() - began}\n")
    return image
