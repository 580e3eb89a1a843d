"""Which architectures become int8, by which method, in which runtime; or why not."""
