"""What Streamhold decides: pure functions on plain values. No kopf, no Redis, no clock, no files."""
