"""`fcntl`, for file locks. Windows has no such module: code that uses it can be imported there, but is not run."""

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

__all__ = ["fcntl"]
