"""What was made once and is not made again: samples kept on disk. Nothing of epochs, batches or torch."""
