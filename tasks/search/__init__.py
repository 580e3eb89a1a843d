"""The search for recipes: its strategy, and the measurements that only a search makes."""
