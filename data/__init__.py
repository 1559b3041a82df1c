"""From raw sources to text, shards and manifests: what stands before both recipes."""
