"""The simulator: predicts an epoch without running it.

It drives the same ledger and strategies as the loader. No threads, sockets, files or clocks live here.
"""
