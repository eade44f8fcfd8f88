"""What frameworks around training loops need of a loader. Their packages are imported late, and only where used."""
