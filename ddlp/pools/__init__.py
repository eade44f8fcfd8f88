"""Pools: engines that prepare a loader's batches beside this host, and that may come and go while an epoch runs.

A pool only says which engines there are, and how each is reached. How an engine takes leases, and what happens when it is lost,
is the same as for any device: `ddlp.sources.engine`.
"""
