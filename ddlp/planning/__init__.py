"""What a run would do: an epoch predicted without running it, and whether sources are worth their use.

`simulate` drives the same ledger and strategies as the loader. `decide` chooses sources from what was `measured`.
`controller` measures and decides while training goes on, for `strategy="auto"`. By `agreement` all ranks of a training judge
the same `window_figures`. `store` keeps what was measured, by `fingerprints`. `scaling` says how many engines a pool should
have, `workers` how many workers. `plan` is what `ddlp plan` prints: a `setup`, `described` by its user, is played (`play`,
`predict`) under each strategy. No threads or sockets live here.
"""
