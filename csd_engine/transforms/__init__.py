"""Pipelines as plain data, and their operators: how they are parsed, drawn and applied to one sample with Pillow.

``draw`` turns random operators into a flat list of deterministic primitives and mask boxes. It needs only the image's size.
``apply`` runs the primitives. Neither knows of batches, epochs, files or torch.
"""
