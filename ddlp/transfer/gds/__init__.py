"""GPUDirect Storage: batch files straight into GPU memory, what stands in the way of that, and a probe that reads."""
