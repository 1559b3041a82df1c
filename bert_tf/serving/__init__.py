"""Question answering behind a Triton Inference Server."""
