"""Input channels: what a job's InputDataConfig lists becomes a folder below ``input/data``."""
