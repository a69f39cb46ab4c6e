"""What runs on each host of a job: the contract files, the input channels, the user's code, the agent and its ranks."""
