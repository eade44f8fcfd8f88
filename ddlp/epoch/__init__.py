"""One epoch at work: the iterator that the training loop asks, the threads behind it, what is ready and what is told."""
