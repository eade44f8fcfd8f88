"""The way of a batch, traced: the tracer, and the loaders whose batches it follows. `tests/test_way.py` runs them."""
