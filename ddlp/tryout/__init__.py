"""The comparison that a new user sees first: DataLoader and each strategy, in turn, on the same images.

`compare` measures, `comparison` is what it finds, `terminal` says that in bars and sentences, `picture` draws it, `results`
writes what is kept; `folder` finds the user's own images for `ddlp try`. templates/quickstart.py uses the same. Must not live
here: any measuring that decides how an epoch goes. Only `compare` brings torch.
"""
