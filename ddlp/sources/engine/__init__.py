"""A device's engine as a source of batches: the connection, jobs and leases, what travels there, what comes back."""
