"""`ddlp run`: an unedited script, with torch's DataLoader swapped.

`command` puts `start` on PYTHONPATH and becomes the script's interpreter. `hook` waits there, and in every interpreter below
it, until torch's loader is imported; from then on `DataLoader(...)` gives a `loader.SwappedLoader`. `told` keeps what is said,
`comparison` times torch's own workers. Nothing here prepares a batch.
"""
