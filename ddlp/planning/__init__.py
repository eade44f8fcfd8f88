"""The simulator: predicts an epoch without running it. `ddlp plan` prints predictions.

`simulate` drives the same ledger and strategies as the loader: no threads, sockets, files or clocks live there. `published` has
the DDLP paper's tables; `paper` predicts them.
"""
