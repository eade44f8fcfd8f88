"""This process, apart from any epoch: its rank, machine, operating system, GPUs and end, and warnings at the user's own line.

Any module may import from here. This package imports nothing of ddlp but `ddlp.errors`.
"""
