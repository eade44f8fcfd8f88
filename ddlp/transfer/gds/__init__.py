"""GPUDirect Storage: reads batch files directly into GPU memory, finds what prevents that, and probes it by a read."""
