"""How many planted mistakes the tests of a module miss: ``python -m benchmarks.mutants``."""
