"""Images in object storage and on web servers: the list of objects, and the data sets. `csd_engine.data.objects` reads them.

obstore is imported when a data set is made. No data set kinds, loaders or epochs here: `ddlp.translate.objects` has the leaf.
"""
