"""Translates torchvision's transforms and data sets to the plain data that both sides run.

Transforms are taken by their exact types only, since a subclass may do anything. A subclass of a known data set is taken if it
makes no samples of its own. Anything else raises ``Untranslatable``, which names the operator, the reason and the ways out.
"""
