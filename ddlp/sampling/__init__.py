"""The samples of an epoch, their order and their random numbers: samplers, checkpoints and keyed generators."""
