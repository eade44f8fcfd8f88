"""Devices as the user names them, and the address book that keeps what is known of each. Nothing here imports torch."""
