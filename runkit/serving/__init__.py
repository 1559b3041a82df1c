"""What both recipes need to stand behind a Triton Inference Server: configuration, models, clients, measurements."""
