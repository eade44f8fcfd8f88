"""What users import to use ddlp with a framework. The framework itself is imported late, and only here."""
