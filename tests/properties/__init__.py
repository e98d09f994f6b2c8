"""What holds for every input: codec, retries, streams."""
