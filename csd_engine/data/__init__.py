"""Data sets as plain data, and their readers: file names, arrays, manifests, files opened safely and before their turn."""
