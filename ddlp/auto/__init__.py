"""What `auto` measures and decides, for ``strategy="auto"``, a pool's number of engines and ``num_workers="auto"``.

`decide` chooses sources from what was `measured`. `controller` measures and decides while training goes on. By `agreement` all
ranks of a training judge the same windows, which `rank_exchange` carries. `store` keeps what was measured for the next
run. `scaling` says how many engines a pool should have, `workers` how many workers. Decisions are pure: durations come in.
Only `store` reads files, and only `rank_exchange` has a thread and a connection.
"""
