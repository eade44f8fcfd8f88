"""The version of ddlp."""

__version__ = "0.1.0"
