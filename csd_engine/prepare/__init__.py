"""Makes samples: one, or the files of a batch by a few calls of the kernel. Runs the user's own operators."""
