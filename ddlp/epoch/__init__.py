"""One running epoch: the iterator that the training loop uses, its threads, the ready batches, and the messages to the user.

Also `rank_exchange`: what several ranks tell each other meanwhile; and `replay`: the training loop without an epoch, on one
batch.
"""
