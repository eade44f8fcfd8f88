"""Sources that prepare batches on this host: our own threads with Pillow and the kernel, DALI, torch's workers."""
