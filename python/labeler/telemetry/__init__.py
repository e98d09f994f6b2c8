"""What the service shows of itself: metrics, status, logs. `names` is the registry of metrics."""
