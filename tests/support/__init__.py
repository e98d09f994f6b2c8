"""What tests share; the one place that touches the API, so that a change of it is one edit."""
