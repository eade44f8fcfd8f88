"""Training epochs under faults: real engines, sockets and file systems are broken while a loader trains on them."""
