"""The composition root: pools, forges, services, schedule and signals; the only room that knows all others."""
