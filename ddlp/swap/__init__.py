"""`ddlp run`: an unedited script, with torch's DataLoader swapped.

`command` puts `start` on PYTHONPATH and becomes the script's interpreter. `hook` waits in that interpreter, and in every one
that it starts, until torch's loader is imported. From then on `DataLoader(...)` gives a `loader.SwappedLoader`. `places`
prints the lines for the user, and `comparison` times torch's own workers. Nothing here prepares a batch.
"""
