"""Published benchmarks of scorers: one file each."""
