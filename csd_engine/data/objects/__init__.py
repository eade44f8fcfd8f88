"""Objects of a storage as samples, and the requests in flight. obstore is imported when a storage is opened."""
