"""The search for recipes: a strategy that requests measurements, and measurements that only searches make."""
