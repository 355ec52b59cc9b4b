"""What trainers are built from."""
