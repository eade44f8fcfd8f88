"""What an epoch's threads did, as events: watching an epoch through its hooks, and writing what was seen.

`ddlp.observe` reads it again. The loader needs this room for ``record=``, and must not need that one.
"""
