"""What users see: the real service, the real client, a real store."""
