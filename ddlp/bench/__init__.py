"""`ddlp bench`: measurements that state their bound and their peers. Benchmarks report; they never assert a time.

Every figure of one table comes from one run, its contenders taking turns, round after round.
"""
