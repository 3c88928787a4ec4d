-- How work is taken and ended: what store/claim.py, settle.py and sweep.py ask of the database in one round trip.

-- The day's runs of a repository that limits them.
CREATE INDEX attempt_of_day ON attempt (repository_id, claimed_at);
