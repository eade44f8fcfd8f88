"""What ddlp raises. Each message says what happened (with the value), where, and what to do next."""


class DDLPError(Exception):
    """Base of all errors of ddlp."""
