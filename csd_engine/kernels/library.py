"""The kernel's C interface (src/ddlp.h) through ctypes."""

from __future__ import annotations

import ctypes

__all__ = ["Job"]


class Job(ctypes.Structure):
    """What to make of one image: crop, resize, keep a part, flip. ddlp_job of src/ddlp.h, which explains each field.

    Made with keywords: `Job(left=8, top=0, width=64, height=64, full_width=32, ...)`; what is not named is 0.
    """

    _fields_ = [
        (name, ctypes.c_int32)
        for name in (
            "left",
            "top",
            "width",
            "height",
            "full_width",
            "full_height",
            "filter",
            "out_left",
            "out_top",
            "out_width",
            "out_height",
            "flip_horizontal",
            "flip_vertical",
            "vertical_first",
            "reduce",
            "channels",
        )
    ] + [("out", ctypes.c_void_p), ("out_stride", ctypes.c_int64)]
