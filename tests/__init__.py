"""The tests. What they share is imported by its full name: `from tests.small_images import make_images`."""
