"""The cache of a loader: what the user may set, the shelf that fits a pipeline, and `ddlp cache`."""
