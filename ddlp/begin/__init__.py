"""What happens when a loader begins an epoch: who makes its batches, where it goes on, and what is kept for the next one."""
