"""The pure schedule of an epoch: who holds which batch, how fast each side is, which source is next.

No thread, file, socket, clock or torch. Time and speeds come in as numbers, so each decision can be played again.
"""
