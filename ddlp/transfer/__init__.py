"""From finished batches of bytes to the tensors that training gets: copies to the accelerator and the epilogue.

Knows devices, memory formats and value tables; nothing of ledgers, engines or who prepared a batch.
"""
