"""What a run would do: an epoch predicted without running it, and whether sources are worth their use.

`simulate` drives the same ledger and strategies as the loader. `decide` chooses sources from what was `measured`; `controller`
measures and decides while training goes on, for `strategy="auto"`. `rules` has
FastFlow's and Cachew's ways of choosing, `workloads` random set-ups to compare them on. `published` has the tables of the DDLP
paper, `paper` predicts them, and `ddlp plan` prints that. `store` keeps what was measured for the next run, by `fingerprints`.
No threads or sockets live here.
"""
