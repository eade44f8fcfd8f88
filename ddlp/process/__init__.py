"""What concerns this process and no epoch: its rank, its operating system, its end, warnings at the user's own line.

Everything here may be imported from anywhere; it imports nothing of ddlp but `ddlp.errors`.
"""
