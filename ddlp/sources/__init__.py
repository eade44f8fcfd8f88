"""The sources that make batches: the host's workers, and devices through their engines.

A source is given claims or leases of batches from the epoch's ledger, and hands back finished batches. Other packages decide
what is done with a finished batch (transfer, delivery), and which one is next (strategies).
"""
