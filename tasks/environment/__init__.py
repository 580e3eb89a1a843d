"""What a result depends on besides the workload: the machine, the libraries and the source code."""
