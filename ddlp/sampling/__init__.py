"""Which samples an epoch has, in which order, and from which random numbers: samplers, checkpoints, keyed generators."""
