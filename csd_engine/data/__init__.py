"""Data sets as plain data, and reading them: file names, arrays, manifests, files opened safely and ahead of their turn."""
