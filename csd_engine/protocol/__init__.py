"""What host and engine say to each other: messages, their checks, their bytes on the wire, and the keys."""
