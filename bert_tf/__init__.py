"""BERT pre-training and fine-tuning in TensorFlow: from text shards to trained checkpoints."""
