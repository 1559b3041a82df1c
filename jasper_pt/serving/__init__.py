"""Speech recognition behind a Triton Inference Server."""
