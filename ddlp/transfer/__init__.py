"""From finished batches of bytes to the tensors that training gets: copies to the accelerator and the epilogue.

This package knows devices, memory formats and value tables. It knows nothing of ledgers and engines, or of who prepared a
batch.
"""
