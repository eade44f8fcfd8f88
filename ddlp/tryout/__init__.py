"""The comparison that a new user sees first: DataLoader and each strategy, in turn, on the same images.

`compare` measures, `comparison` is what it finds, `text` says that in a table and sentences; `folder` finds the user's own
images for `ddlp try`. templates/quickstart.py uses the same. Must not live here: any measuring that decides how an epoch goes.
Only `compare` brings torch.
"""
