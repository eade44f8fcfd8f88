"""One running epoch: the iterator that the training loop uses, its threads, the ready batches, and the messages to the user.

Also `replay`: the training loop without an epoch, on one batch.
"""
