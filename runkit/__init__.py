"""What every training run has, free of any framework.

Errors a user can act on, files that are never half written, DLLogger-compatible logs, throughput and latency
meters, the checkpoint store, progress lines, TensorBoard events, plots, tables and a description of the
machine. Both recipes import this package; it imports neither of them, nor TensorFlow, nor PyTorch. Heavy
libraries are imported where used.
"""
