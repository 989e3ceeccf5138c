"""What the library costs beside raw redis-py, measured in one run: `python -m benchmarks --help`."""
