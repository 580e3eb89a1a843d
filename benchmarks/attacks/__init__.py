"""What is tried against nightquant's readers, how often, and what gets through: ``python -m benchmarks.attacks``.

Every attack is made by a generator from a seed, so that the same ones come again. An input counts as *refused* where it
ends in an error that a user can read, as *through* where it changes a result's value, leaves its folder, takes memory
that the file does not hold, or ends in any other exception, and else as *harmless*. Changed values of a checkpoint are
not counted: only its SHA-256 in the workload file can tell.
"""

from __future__ import annotations

from benchmarks.attacks.downloads import downloads
from benchmarks.attacks.handed_over import bundles, pointers
from benchmarks.attacks.inputs import archives, checkpoints, names_in_manifests, workload_files
from benchmarks.attacks.outcome import Attack
from benchmarks.attacks.results import bit_flips, catalogs, results_files

ATTACKS: dict[str, Attack] = {
    "flipped bits of a results file": bit_flips,
    "results files": results_files,
    "catalogs": catalogs,
    "bundles": bundles,
    "HTTP downloads": downloads,
    "names in an artifact's manifest": names_in_manifests,
    "archives": archives,
    "checkpoints": checkpoints,
    "workload files": workload_files,
    "signed pointers of a mirror": pointers,
}
