"""Bringing the engine to a device over SSH, and looking after it there.

`shell` speaks to a device through the system's OpenSSH, `findings` holds the results of checks. `ddlp.devices.address_book`
knows the devices by name. Nothing here imports torch, so that the command line answers at once. Nothing here takes part in
training.
"""
