"""`fcntl`, the locks of files. Windows has none; what uses them is imported there all the same, and not run."""

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

__all__ = ["fcntl"]
