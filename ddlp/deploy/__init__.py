"""Bringing the engine to a device over SSH, and looking after it there.

`book` knows the devices by name, `shell` speaks to one through the system's OpenSSH, `findings` is what a check says. What
lives here imports no torch, so that the command line answers at once; nothing here takes part in training.
"""
