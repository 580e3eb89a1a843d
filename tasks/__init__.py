"""The stages of a run as plain functions; other packages do not import torch."""
