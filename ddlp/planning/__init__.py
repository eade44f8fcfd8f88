"""What a run would do: an epoch predicted without running it, and whether sources are worth their use.

`simulate` drives the same ledger and strategies as the loader. `decide` chooses sources from what was `measured`.
`controller` measures and decides while training goes on, for `strategy="auto"`. By `agreement` all ranks of a training judge
the same `window_figures`. `store` keeps what was measured, by `fingerprints`. `rules` has FastFlow's and Cachew's ways of
choosing, `workloads` random set-ups to compare them on. `scaling` says how many engines a pool should have, and
`pool_workloads` has random set-ups for that. `plan` is what `ddlp plan` prints: a `setup`, `described` by
its user, is played (`play`, `predict`), `compared` under strategies and rules, and answered (`answers`). `published` has the
tables of the DDLP paper, and `paper` predicts them. No threads or sockets live here.
"""
