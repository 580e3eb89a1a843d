"""Package a promoted candidate as a bundle, and verify bundles."""
