"""QuartzNet and Jasper speech recognition in PyTorch: from audio and transcripts to a trained, transcribing model."""
