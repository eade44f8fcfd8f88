"""The batch file: its layout and identity, its checksum, how it is written and how it is read."""
