"""The composition root: pools, forges, services, schedule and signals; the only room that knows all others.

Nothing is imported here: a command that only reads a row need not load what a process that stays needs.
"""
