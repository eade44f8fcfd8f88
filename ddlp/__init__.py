"""ddlp: a drop-in for PyTorch's DataLoader that prepares each epoch from both ends."""
