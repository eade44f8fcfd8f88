"""Optional C: decode a JPEG's region, resample, flip, in one call into the batch, with Pillow's exact bits.

Nothing here is needed: without the compiled library (or where it does not agree with Pillow) Pillow does the work.
"""
