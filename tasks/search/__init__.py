"""Search for recipes: decide what to measure, and make the measurements that only a search needs."""
