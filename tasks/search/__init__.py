"""The search for recipes: a strategy that asks for measurements, and the measurements that nights lack."""
