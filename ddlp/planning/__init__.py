"""What can be said about an epoch without running it: the simulator.

Drives the very ledger and strategies that the loader runs. No threads, sockets, files or clocks live here.
"""
