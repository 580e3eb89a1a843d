"""Package a promoted candidate as a bundle, verify bundles, and look up the current bundle."""
