"""Images in object storage and on web servers: the list of objects, the requests in flight, and the data sets.

obstore is imported when a data set is made. No data set kinds, loaders or epochs here: `ddlp.translate.objects` has the leaf.
"""
