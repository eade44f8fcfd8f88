"""Measurements that state their bound and their peers. Benchmarks report; they never assert a time.

All figures of a table come from one run, in which the contenders take turns, round after round.
"""
