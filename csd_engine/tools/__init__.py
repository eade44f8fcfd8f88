"""Programs beside the engine, each started by ``python -m``: they look at a device, compare it, and keep its engine running."""
