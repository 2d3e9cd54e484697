"""Reports a run's figures to other services, from processes that can't disturb the run."""
