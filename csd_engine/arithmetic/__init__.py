"""Numbers that are the same on every computer: random ones that follow from a sample's key, and angles' sines."""
