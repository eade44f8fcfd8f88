"""User code on the pool: other processes make batches of samples that only the user's own data set can make.

    tree       a finished batch as a header and buffers, and back: no pickle in results
    work       what a node is sent (the data set and the collate_fn once, then tasks), and what it answers
    wire       a node behind a socket: elsewhere, or a process of this machine (`process`)
    ray_node   user code in an actor of Ray, and the relay to it
    host       the host's part: torch's worker processes, which make the rest
    source     the lease source over a node
    nodes      the loader's nodes, kept between epochs
"""
