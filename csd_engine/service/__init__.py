"""The engine as a service: its socket, the jobs of its hosts, worker processes, the spool on its disk."""
