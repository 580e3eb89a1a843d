"""Each folder is a domain: the data, models, training and metrics for one kind of work."""
