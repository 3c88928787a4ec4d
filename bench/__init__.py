"""Measures the job table beside its bare limit and two other queues, in one run on one server; run by `./run bench`."""
