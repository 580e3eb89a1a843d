"""The machine, the libraries, the user's code and digests of code: dependencies of a result besides the workload."""
