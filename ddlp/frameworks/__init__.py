"""Frameworks around the training loop that a loader must notice: accelerate, Lightning, Ray Train, torch.distributed.

What users import for a framework is in `ddlp.integrations`. The frameworks are imported late, and only where they are used.
"""
