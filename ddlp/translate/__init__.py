"""From torchvision's transforms and data sets to the plain data that both sides run.

Accepts exact types only: a subclass may do anything. What can't be translated raises ``Untranslatable``, which names
the operator, the reason and the ways out.
"""
