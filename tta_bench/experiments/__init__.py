"""Single runs, benches and tuning, with resuming of interrupted runs."""
