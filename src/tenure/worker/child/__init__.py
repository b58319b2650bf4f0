"""A child process of a worker: runs handlers, and asks its supervisor for everything else."""
