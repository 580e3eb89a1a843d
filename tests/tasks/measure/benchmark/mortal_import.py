"""A module that ends the process which imports it, as a library that crashes does."""

import os
import signal

os.kill(os.getpid(), signal.SIGSEGV)
