"""This computer: memory, CPUs, power sensors, file locks, which code and which versions it has."""
