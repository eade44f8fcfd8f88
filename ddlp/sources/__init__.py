"""Where batches come from: the host's own workers, and engines on other computers or processes.

What lives here turns claims into batches and knows processes, sockets and files. It knows nothing of strategies or
tensors.
"""
