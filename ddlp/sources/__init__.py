"""Where batches are made: the host's worker pool, and devices through their engines.

A source claims or leases batches through the epoch's ledger and hands back finished ones. What is done with a finished
batch (transfer, delivery) and which one is next (strategies) is decided elsewhere.
"""
