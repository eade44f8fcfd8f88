"""The pure schedule of an epoch: who holds which batch, how fast each side is, and which source is next.

These modules use no thread, file, socket, clock or torch. Time and speeds come in as numbers, so each decision can be replayed.
"""
