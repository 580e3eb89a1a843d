"""The benchmark: how fast each candidate is against the baseline, and whether this machine could tell."""

from tasks.benchmark.profile import PROFILES, Profile, profile_named
from tasks.benchmark.stage import BenchmarkCandidate, benchmark, benchmark_with_rerun

__all__ = ["PROFILES", "BenchmarkCandidate", "Profile", "benchmark", "benchmark_with_rerun", "profile_named"]
