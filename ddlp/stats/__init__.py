"""The numbers of a loader: what an epoch did (its report), whether training waits for data, what all epochs do now."""
