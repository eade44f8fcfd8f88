"""What an epoch's threads did, as events: watching an epoch through its hooks, and writing the events.

`ddlp.observe` reads them again. The loader needs this package for ``record=``. It must not need `ddlp.observe`. torch's own
DataLoader, measured and recorded in the same way, lives here too.
"""
