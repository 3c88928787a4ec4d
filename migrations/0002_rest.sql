-- How a job rests: one function computes (state, reason) on every way into pending or waiting, gives turns,
-- and triggers keep what no caller may forget: terminal states stay, the mirror learns of every change.

-- The least turn pending in (lane, priority); null when nothing is.
CREATE FUNCTION first_turn(in_lane text, in_priority smallint) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
  SELECT j.turn FROM job j
   WHERE j.state = 'pending' AND j.lane = in_lane AND j.priority = in_priority
   ORDER BY j.turn, j.id LIMIT 1
$$;

-- Within (lane, priority) a repository with many pending jobs delays another's single job by at most one:
-- greatest(least turn pending there, 1 + greatest turn pending there of this repository).
-- The caller holds the repository's row lock, so that two jobs of one repository never read the same greatest turn.
CREATE FUNCTION next_turn(in_lane text, in_priority smallint, in_repository bigint) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
  SELECT greatest(
    coalesce(first_turn(in_lane, in_priority), 0),
    coalesce((SELECT next_after(j.turn) FROM job j
               WHERE j.state = 'pending' AND j.repository_id = in_repository AND j.lane = in_lane AND j.priority = in_priority
               ORDER BY j.turn DESC LIMIT 1), 0))
$$;

-- Waits are columns, so that several can hold at once; the reason shown is the first of this order.
CREATE FUNCTION job_rest() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  tracked  boolean;
  readable boolean;
  approved boolean;
  cap      numeric;
  reserve  numeric;
BEGIN
  SELECT r.tracked, r.readable INTO tracked, readable FROM repository r WHERE r.id = NEW.repository_id;
  SELECT i.content_hash = i.approved_hash INTO approved FROM issue i WHERE i.id = NEW.issue_id;
  -- A job rests claimable only on the approved text, whoever brings it back.
  IF NEW.parked IS NULL AND approved IS NOT TRUE THEN
    NEW.parked := 'needs_approval';
    NEW.parked_at := clock_timestamp();
  ELSIF NEW.parked = 'needs_approval' AND approved THEN
    NEW.parked := NULL;
  END IF;
  IF NEW.parked IS NULL THEN
    NEW.parked_at := NULL;
    NEW.question := NULL;
  END IF;
  -- By whatever way it comes back: where the cap is used up only a person's word leads on. Most jobs read no lane here.
  IF NEW.spent_usd > 0 AND (NEW.parked IS NULL OR NEW.parked = 'budget_exhausted' AND NEW.question IS NULL) THEN
    SELECT l.max_usd, l.reserve_usd INTO cap, reserve FROM lane l WHERE l.name = NEW.lane;
    IF NEW.spent_usd >= cap OR cap - NEW.spent_usd < reserve OR NEW.parked = 'budget_exhausted' THEN
      NEW.parked := 'budget_exhausted';
      NEW.parked_at := coalesce(NEW.parked_at, clock_timestamp());
      NEW.question := format('Its attempts have cost %s USD; a job of lane %s may cost %s USD until a person acts on it.',
                             trim_scale(round(NEW.spent_usd, 6)), NEW.lane, coalesce(trim_scale(cap)::text, 'any number of'));
      IF NEW.spent_usd < cap AND cap - NEW.spent_usd < reserve THEN
        NEW.question := rtrim(NEW.question, '.')
          || format(', and %s USD are left: less than the %s USD without which this lane starts no attempt.',
                    trim_scale(round(cap - NEW.spent_usd, 6)), trim_scale(reserve));
      END IF;
    END IF;
  END IF;
  IF NEW.not_before <= clock_timestamp() THEN
    NEW.not_before := NULL;
    NEW.not_before_reason := NULL;
  END IF;
  NEW.reason := CASE
    WHEN NEW.parked IS NOT NULL THEN NEW.parked
    WHEN NOT tracked            THEN 'untracked'
    WHEN NOT readable           THEN 'cannot_tell'
    WHEN NEW.hold               THEN 'on_hold'
    WHEN NEW.waits_for <> '{}'  THEN 'waits_for'
    WHEN NEW.repository_full    THEN 'repository_full'
    WHEN NEW.day_limit          THEN 'day_limit'
    ELSE NEW.not_before_reason
  END;
  NEW.state := CASE WHEN NEW.reason IS NULL THEN 'pending' ELSE 'waiting' END;
  IF NEW.state = 'pending' AND (TG_OP = 'INSERT' OR OLD.state <> 'pending') THEN
    NEW.pending_at := clock_timestamp();
  END IF;
  IF NEW.state = 'pending' AND (TG_OP = 'INSERT' OR OLD.state = 'waiting' OR NEW.lane <> OLD.lane OR NEW.priority <> OLD.priority) THEN
    NEW.turn := next_turn(NEW.lane, NEW.priority, NEW.repository_id);
  ELSIF NEW.state = 'pending' AND OLD.state <> 'pending' THEN
    -- Given back and expired jobs keep theirs. When the queue ran empty meanwhile turns began anew: then they stand in front.
    NEW.turn := least(NEW.turn, first_turn(NEW.lane, NEW.priority));
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER job_rest_insert BEFORE INSERT ON job FOR EACH ROW
  WHEN (NEW.state = ANY ('{pending, waiting}')) EXECUTE FUNCTION job_rest();
-- Not when its predecessor is pruned: that is nobody's word about this job, and no transition.
CREATE TRIGGER job_rest_update BEFORE UPDATE ON job FOR EACH ROW
  WHEN (NEW.state = ANY ('{pending, waiting}') AND NEW.rerun_of IS NOT DISTINCT FROM OLD.rerun_of) EXECUTE FUNCTION job_rest();

CREATE FUNCTION job_terminal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'job % is % and stays so: run it again as a new job', OLD.id, OLD.state
    USING ERRCODE = 'check_violation', CONSTRAINT = 'terminal_stays_terminal';
END $$;
CREATE TRIGGER job_terminal BEFORE UPDATE OF state, finished_at, reason, kind, attempts, claim_no ON job FOR EACH ROW
  WHEN (OLD.state = ANY ('{delivered, failed, cancelled}')) EXECUTE FUNCTION job_terminal();

-- What would make a row lie, refused under the trigger's own name.
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
END $$;
-- Attempts go by this number: with another one neither settle nor the next claim would find the way.
CREATE TRIGGER claim_no_counts_claims BEFORE UPDATE OF claim_no ON job FOR EACH ROW
  WHEN (NEW.claim_no <> OLD.claim_no AND NOT (NEW.state = 'claimed' AND OLD.state = 'pending' AND NEW.claim_no = OLD.claim_no + 1))
  EXECUTE FUNCTION refuse('claim_no is the number of the last claim, and grows by one with the next');
CREATE TRIGGER attempt_stays_its_claims BEFORE UPDATE OF job_id, claim_no, token ON attempt FOR EACH ROW
  EXECUTE FUNCTION refuse('an attempt is one claim''s, and stays that');
CREATE FUNCTION children_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.children_done > (SELECT count(*) FROM child c WHERE c.plan_issue_id = NEW.id AND c.ended_at IS NOT NULL) THEN
    RAISE EXCEPTION 'plan issue % has not so many children that ended', NEW.id
      USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER children_done_have_ended AFTER UPDATE OF children_done ON issue FOR EACH ROW
  WHEN (NEW.children_done > OLD.children_done) EXECUTE FUNCTION children_counted();

-- The mirror is level-triggered: it is told that something changed, never what.
CREATE FUNCTION mirror_changed(of_issue bigint) RETURNS void LANGUAGE sql AS $$
  INSERT INTO mirror (issue_id) VALUES (of_issue)
  ON CONFLICT (issue_id) DO UPDATE SET changed = next_after(mirror.changed)
$$;
-- Once a statement, however many jobs it moves; by issue, so that two statements never wait for each other.
CREATE FUNCTION job_made() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO mirror (issue_id) SELECT DISTINCT n.issue_id FROM made n ORDER BY 1
  ON CONFLICT (issue_id) DO UPDATE SET changed = next_after(mirror.changed);
  RETURN NULL;
END $$;
CREATE TRIGGER job_mirror_insert AFTER INSERT ON job REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION job_made();
CREATE FUNCTION job_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- Not joined: how many rows there will be is not known when the plan is made, and it stays with the session.
  INSERT INTO mirror (issue_id)
  SELECT DISTINCT d.issue_id FROM (
    SELECT id, issue_id, state, reason, kind, lane, attempts, pull_request, question, publish_reason, waits_for, not_before FROM after
    EXCEPT
    SELECT id, issue_id, state, reason, kind, lane, attempts, pull_request, question, publish_reason, waits_for, not_before FROM before) d
   ORDER BY 1
  ON CONFLICT (issue_id) DO UPDATE SET changed = next_after(mirror.changed);
  RETURN NULL;
END $$;
CREATE TRIGGER job_mirror_update AFTER UPDATE ON job REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT
  EXECUTE FUNCTION job_changed();
CREATE FUNCTION issue_triaged() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM mirror_changed(NEW.id);
  RETURN NULL;
END $$;
-- A refusal that was there when the issue was first seen is told as well.
CREATE TRIGGER issue_mirror_insert AFTER INSERT ON issue FOR EACH ROW
  WHEN (NEW.triage_code IS NOT NULL) EXECUTE FUNCTION issue_triaged();
-- The answered marks too: the comment carries them for a database that starts afresh. And whether it is asked for, since
-- labels taken off a delivered issue change nothing else, but what there is to do to ask again.
CREATE TRIGGER issue_mirror_update AFTER UPDATE OF triage_code, triage_details, answered_event, answered_time, asked ON issue FOR EACH ROW
  WHEN ((NEW.triage_code, NEW.triage_details, NEW.answered_event, NEW.answered_time, NEW.asked)
        IS DISTINCT FROM
        (OLD.triage_code, OLD.triage_details, OLD.answered_event, OLD.answered_time, OLD.asked))
  EXECUTE FUNCTION issue_triaged();
