-- How work is taken, ended and taken back: what store/claim.py, settle.py, sweep.py and lanes.py ask of the database
-- in one round trip, because it counts, or locks more than one row, before it writes.
-- Locks here: the table attempt, latch, places (tried only), repository (by id), plan issue, job, child, lane (by name),
-- lane_breaker, lane_hold, attempt (whoever has it has its job, or waits for nobody), mirror (by issue), look (by number);
-- rows FOR NO KEY UPDATE.
-- In a function every statement has a snapshot of its own: what is read after a lock is what the last holder left.

-- The day's runs of a repository that limits them.
CREATE INDEX attempt_of_day ON attempt (repository_id, claimed_at);
-- What an end wakes: the first waiting job of a repository at its limit.
CREATE INDEX job_full ON job (repository_id, lane, priority DESC, id) WHERE state = 'waiting' AND (repository_full OR day_limit);
-- Pruning: each key that points at what is deleted, else one deleted row costs a walk of the table.
CREATE INDEX job_of_result ON job (result_attempt) WHERE result_attempt IS NOT NULL;
CREATE INDEX job_of_rerun ON job (rerun_of) WHERE rerun_of IS NOT NULL;
CREATE INDEX child_of_attempt ON child (attempt_id) WHERE attempt_id IS NOT NULL;
CREATE INDEX request_created ON request (created_at);

-- ------------------------------------------------------------------------------------------------ what every end brings

-- Notify whom a function names: a channel, perhaps with its payload behind a space. Where the caller has a bell it rings that
-- instead: a transaction with a NOTIFY commits alone, since the server holds one lock over all of them till it is on the disk.
CREATE FUNCTION wake_all(wakes text[]) RETURNS void LANGUAGE sql AS $$
  SELECT pg_notify(split_part(w, ' ', 1), split_part(w, ' ', 2)) FROM unnest(wakes) AS w
$$;

-- "Judge these issues again", at once; ingest's own writer of looks may put one off. The caller wakes the poller.
CREATE FUNCTION look_again(of_issues bigint[], because text) RETURNS void LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  INSERT INTO look (repository_id, number, why)
  SELECT i.repository_id, i.number, because FROM issue i WHERE i.id = ANY (of_issues) ORDER BY 1, 2
  ON CONFLICT (repository_id, number) DO UPDATE
    SET written_at = clock_timestamp(), not_before = '-infinity', why = EXCLUDED.why;
END $$;

-- A plan's issue comes before the job in the order of locks: whoever may deliver a job calls this before locking it.
CREATE FUNCTION lock_plan_of(child_issue bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM issue i
    WHERE i.id = (SELECT c.plan_issue_id FROM child c WHERE c.issue_id = child_issue AND c.ended_at IS NULL)
    FOR NO KEY UPDATE;
END $$;

-- Counted, not added to: whatever somebody did to a child by hand, the next end of one sets it right. Not before whoever ends
-- another one at this moment has committed, else that one would be missed.
CREATE FUNCTION count_children(of_plan bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM issue i WHERE i.id = of_plan FOR NO KEY UPDATE;
  UPDATE issue SET children_done = (SELECT count(*) FROM child c WHERE c.plan_issue_id = of_plan AND c.ended_at IS NOT NULL)
   WHERE id = of_plan;
END $$;

-- Whoever ended jobs calls this in the same transaction, once: their issues are looked at again, a delivered child ends and
-- is counted at its plan (once: a child that has ended is not found), what was recorded but never created is dropped.
-- The caller wakes the poller and the mirror.
-- Looks in one statement and by number: two that end several at once would else wait for each other.
-- One plan for every list: the planner would else think each call's list worth a plan of its own, a third of a settle.
CREATE FUNCTION jobs_ended(of_jobs bigint[]) RETURNS void LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  plan  bigint;
  plans bigint[];
BEGIN
  WITH delivered AS (
    UPDATE child c SET ended_at = clock_timestamp(), ended_reason = 'delivered'
      FROM job j
     WHERE j.id = ANY (of_jobs) AND j.state = 'delivered' AND c.issue_id = j.issue_id AND c.ended_at IS NULL
    RETURNING c.plan_issue_id
  )
  SELECT coalesce(array_agg(DISTINCT d.plan_issue_id ORDER BY d.plan_issue_id), '{}') INTO plans FROM delivered d;
  FOREACH plan IN ARRAY plans LOOP
    PERFORM count_children(plan);
    PERFORM mirror_changed(plan);
  END LOOP;
  DELETE FROM child c WHERE c.job_id = ANY (of_jobs) AND c.sent_at IS NULL AND c.number IS NULL AND c.ended_at IS NULL;
  INSERT INTO look (repository_id, number, why)
  SELECT l.repository_id, l.number, min(l.why)
    FROM (SELECT j.repository_id, i.number, 'job ended' AS why
            FROM job j JOIN issue i ON i.id = j.issue_id WHERE j.id = ANY (of_jobs)
           UNION ALL
          -- A plan's children may have waited for its end.
          SELECT j.repository_id, c.number, 'plan ended'
            FROM child c JOIN job j ON j.id = c.job_id
           WHERE c.job_id = ANY (of_jobs) AND c.number IS NOT NULL AND c.ended_at IS NULL
           UNION ALL
          -- What is to be implemented as a whole may have waited for its parts.
          SELECT p.repository_id, p.number, 'child ended'
            FROM issue p
           WHERE p.id = ANY (plans) AND (SELECT j.state FROM job j WHERE j.issue_id = p.id ORDER BY j.id DESC LIMIT 1) = 'waiting') l
   GROUP BY 1, 2 ORDER BY 1, 2
  ON CONFLICT (repository_id, number) DO UPDATE
    SET written_at = clock_timestamp(), not_before = '-infinity', why = EXCLUDED.why;
END $$;

-- Cancel a job in whatever state: 'cancelled'; 'requested' of the runner that has it; 'too_late', since something of it
-- may be on the forge; 'ended' before; null: no such job. `code` is the reason it ends with.
CREATE FUNCTION cancel_job(of_job bigint, by text, code text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  j job;
BEGIN
  SELECT * INTO j FROM job WHERE id = of_job FOR NO KEY UPDATE;
  CASE
    WHEN j.id IS NULL THEN RETURN NULL;
    WHEN j.state IN ('delivered', 'failed', 'cancelled') THEN RETURN 'ended';
    WHEN j.state = 'publishing' AND j.publish_began_at IS NOT NULL THEN RETURN 'too_late';
    WHEN j.state = 'claimed' THEN
      IF j.cancel_requested IS NULL THEN
        UPDATE job SET cancel_requested = code WHERE id = of_job;
        INSERT INTO job_event (job_id, who, what, from_state, to_state, reason)
        VALUES (of_job, by, 'cancel asked', 'claimed', 'claimed', code);
        PERFORM pg_notify('tireless_cancel', j.claimed_by);  -- its next renewal tells the runner; this makes it come now
      END IF;
      RETURN 'requested';
    ELSE
      UPDATE job SET state = 'cancelled', reason = code, finished_at = clock_timestamp(), publish_reason = NULL,
                     publish_by = NULL, publish_token = NULL, publish_until = NULL, publish_not_before = NULL WHERE id = of_job;
      INSERT INTO job_event (job_id, who, what, from_state, to_state, reason) VALUES (of_job, by, 'cancel', j.state, 'cancelled', code);
      PERFORM jobs_ended(ARRAY[of_job]), pg_notify('tireless_look', ''), pg_notify('tireless_mirror', '');
      RETURN 'cancelled';
  END CASE;
END $$;

-- ------------------------------------------------------------------------------------------------ limits

-- The latch of a lane, for pg_advisory_xact_lock.
CREATE FUNCTION lane_latch(of_lane text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT hashtextextended(of_lane, 20261)
$$;

-- Places of a lane for at most `up_to` claims, so that no more than `most` run: each is free, and this transaction's alone
-- until it ends. Waits for nobody: a place that another claim is about to take is passed by.
-- What runs above `most` or without a place (the limit is younger) keeps as many of the highest places free. So whoever looks
-- later looks at least as high, and what is taken meanwhile is below: no two that look at once can take one too many.
CREATE FUNCTION take_places(of_lane text, most int, up_to int) RETURNS int[] LANGUAGE plpgsql AS $$
DECLARE
  p     int;
  taken int[] := '{}';
BEGIN
  -- What was seen is old at once: whoever gets none of it, since others were faster, tries again.
  FOR round IN 1 .. 5 LOOP
    FOR p IN
      WITH used AS MATERIALIZED (
        SELECT j.claim_place FROM job j WHERE j.state = 'claimed' AND j.lane = of_lane
      )
      -- So far as is looked at: the lowest free ones, and some that other claims are about to take.
      SELECT s.n FROM generate_series(1, least(most, (SELECT count(*)::int FROM used) + up_to + 100)) AS s (n)
       WHERE NOT EXISTS (SELECT FROM used u WHERE u.claim_place = s.n)
       ORDER BY s.n LIMIT greatest(most - (SELECT count(*) FROM used), 0)
    LOOP
      BEGIN
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(hashtext(of_lane), p);
        -- Again, with a snapshot younger than the lock: its last holder may have committed in between.
        PERFORM FROM job j WHERE j.state = 'claimed' AND j.lane = of_lane AND j.claim_place = p;
        IF FOUND THEN RAISE SQLSTATE 'TL001'; END IF;
        taken := taken || p;
        EXIT WHEN cardinality(taken) = up_to;
      EXCEPTION WHEN SQLSTATE 'TL001' THEN
        NULL;  -- the lock is given back with the block, or the place would be passed by till our end
      END;
    END LOOP;
    EXIT WHEN NOT FOUND OR taken <> '{}';
  END LOOP;
  RETURN taken;
END $$;

-- A probe passes when it has lived so long.
CREATE FUNCTION probe_lives() RETURNS interval LANGUAGE sql IMMUTABLE AS $$ SELECT interval '2 min' $$;

CREATE FUNCTION running_in_lane(of_lane text) RETURNS int LANGUAGE sql STABLE AS $$
  SELECT count(*)::int FROM job j WHERE j.state = 'claimed' AND j.lane = of_lane
$$;
CREATE FUNCTION running_in_repository(of_repository bigint) RETURNS int LANGUAGE sql STABLE AS $$
  SELECT count(*)::int FROM job j WHERE j.state = 'claimed' AND j.repository_id = of_repository
$$;
-- Runs of the day by UTC; an attempt given back was none.
CREATE FUNCTION runs_today(of_repository bigint) RETURNS int LANGUAGE sql STABLE AS $$
  SELECT count(*)::int FROM attempt a
   WHERE a.repository_id = of_repository AND a.burned IS NOT FALSE
     AND a.claimed_at >= (SELECT date_trunc('day', clock_timestamp(), 'UTC'))  -- asked once: else no index serves it
$$;

-- A repository at its limit: its first pending jobs of a lane step aside, at most `up_to`; the caller holds the
-- repository's lock, or an end in between would wake nobody. How many moved; locked ones are left.
CREATE FUNCTION rest_repository(of_repository bigint, of_lane text, is_full boolean, is_spent boolean, up_to int)
RETURNS int LANGUAGE sql AS $$
  WITH first AS MATERIALIZED (
    SELECT j.id FROM job j WHERE j.state = 'pending' AND j.repository_id = of_repository AND j.lane = of_lane
     ORDER BY j.priority DESC, j.turn, j.id LIMIT up_to FOR NO KEY UPDATE SKIP LOCKED
  ), moved AS (
    UPDATE job j SET repository_full = is_full, day_limit = is_spent
     WHERE j.id = ANY (ARRAY(SELECT f.id FROM first f)) RETURNING j.id, j.state, j.reason
  ), told AS (
    INSERT INTO job_event (job_id, who, what, from_state, to_state, reason)
    SELECT m.id, 'claim', 'wait', 'pending', m.state, m.reason FROM moved m
  )
  SELECT count(*)::int FROM moved
$$;

-- Wake as many waiting jobs of a repository, in each lane, as there is room for; the first of them, by priority and age.
-- Where there is none, those that wait say for what, some at a time: what they stepped aside for may be another limit's now.
-- The caller holds the repository's lock. How many woke.
CREATE FUNCTION wake_repository(of_repository bigint, by text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  r     repository;
  free  int;
  runs  int;
  room  int;
  of_lane text := '';
  moved int;
  woken int := 0;
BEGIN
  SELECT * INTO STRICT r FROM repository WHERE id = of_repository;
  free := r.max_running - running_in_repository(r.id);
  runs := r.max_runs_per_day - runs_today(r.id);
  -- 100 a step where nothing limits; greatest() would ignore a null, least() does so on purpose.
  room := least(100, free, runs);
  IF room <= 0 THEN
    UPDATE job SET repository_full = coalesce(free <= 0, false), day_limit = coalesce(runs <= 0, false)
     WHERE id = ANY (ARRAY(
       SELECT j.id FROM job j
        WHERE j.state = 'waiting' AND (j.repository_full OR j.day_limit) AND j.repository_id = r.id
          AND (j.repository_full, j.day_limit) <> (coalesce(free <= 0, false), coalesce(runs <= 0, false))
        ORDER BY j.lane, j.priority DESC, j.id LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED));
    RETURN 0;
  END IF;
  LOOP
    -- From lane to lane by the index: DISTINCT would walk every job that waits.
    SELECT j.lane INTO of_lane FROM job j
     WHERE j.state = 'waiting' AND (j.repository_full OR j.day_limit) AND j.repository_id = r.id AND j.lane > of_lane
     ORDER BY j.lane LIMIT 1;
    EXIT WHEN NOT FOUND;
    WITH ahead AS (
      SELECT 1 FROM job j WHERE j.state = 'pending' AND j.repository_id = r.id AND j.lane = of_lane LIMIT greatest(room, 0)
    ), first AS MATERIALIZED (
      SELECT j.id FROM job j
       WHERE j.state = 'waiting' AND (j.repository_full OR j.day_limit) AND j.repository_id = r.id AND j.lane = of_lane
         AND j.parked IS NULL AND NOT j.hold AND j.waits_for = '{}' AND j.not_before IS NULL AND r.tracked AND r.readable
       ORDER BY j.priority DESC, j.id
       LIMIT greatest(room - (SELECT count(*) FROM ahead), 0) FOR NO KEY UPDATE SKIP LOCKED
    ), moved AS (
      UPDATE job j SET repository_full = false, day_limit = false, state = 'pending'
       WHERE j.id = ANY (ARRAY(SELECT f.id FROM first f)) RETURNING j.id, j.state, j.reason
    ), told AS (
      INSERT INTO job_event (job_id, who, what, from_state, to_state, reason)
      SELECT m.id, by, 'wake', 'waiting', m.state, m.reason FROM moved m
    )
    SELECT count(*)::int INTO moved FROM moved;
    IF moved > 0 THEN
      PERFORM pg_notify('tireless_lane', of_lane);
      woken := woken + moved;
    END IF;
  END LOOP;
  RETURN woken;
END $$;

-- Some lane must count as soon as some repository has a limit, whoever wrote it. Deferred to the commit, so that lanes
-- are locked after every repository; all of them, so that two changes at once see each other.
CREATE FUNCTION limits_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM lane ORDER BY name FOR NO KEY UPDATE;
  UPDATE lane SET repository_limits = NOT repository_limits
   WHERE repository_limits <> EXISTS (SELECT FROM repository r WHERE r.tracked AND num_nonnulls(r.max_running, r.max_runs_per_day) > 0);
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER repository_limits_insert AFTER INSERT ON repository DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  WHEN (num_nonnulls(NEW.max_running, NEW.max_runs_per_day) > 0) EXECUTE FUNCTION limits_changed();
CREATE CONSTRAINT TRIGGER repository_limits_update AFTER UPDATE ON repository DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  WHEN ((OLD.max_running, OLD.max_runs_per_day, OLD.tracked) IS DISTINCT FROM (NEW.max_running, NEW.max_runs_per_day, NEW.tracked)
        AND num_nonnulls(OLD.max_running, OLD.max_runs_per_day, NEW.max_running, NEW.max_runs_per_day) > 0)
  EXECUTE FUNCTION limits_changed();
CREATE CONSTRAINT TRIGGER lane_limits_insert AFTER INSERT ON lane DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION limits_changed();

-- ------------------------------------------------------------------------------------------------ the claim

-- A claim as it is handed out; null job_id: see claim_counted.
CREATE TYPE claim_given AS (
  job_id bigint, attempt_id bigint, claim_no bigint, token uuid, attempt_uid uuid, attempts int, lease_left_s double precision,
  kind text, max_attempts int, request_id bigint, rerun_of bigint,
  lease_s double precision, run_timeout_s double precision, stall_timeout_s double precision,
  backoff_base_s double precision, backoff_cap_s double precision,
  forge text, owner text, name text, forge_repo_id bigint, default_branch text, clone_url text,
  number int, url text, approved_title text, approved_body text, usd_left double precision
);

-- Claim these jobs, which the caller has locked, in as many of these places (null: the lane has no limit); CLAIM in
-- store/claim.py writes the same for an open lane.
-- One plan for every list, as in jobs_ended; by keys, however few the rows were when it was made.
CREATE FUNCTION claim_these(l lane, ids bigint[], places int[], in_runner text, in_host text) RETURNS SETOF claim_given
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
  RETURN QUERY
  WITH claimed AS (
    UPDATE job j
       SET state = 'claimed', attempts = j.attempts + 1, claim_no = j.claim_no + 1, claim_token = gen_random_uuid(),
           claimed_by = in_runner, claimed_host = in_host, claimed_at = clock_timestamp(),
           claim_expires_at = clock_timestamp() + make_interval(secs => l.lease_s),
           claim_place = places[array_position(ids, j.id)]
     WHERE j.id = ANY (ids)
    RETURNING j.id, j.issue_id, j.repository_id, j.request_id, j.claim_no, j.claim_token, j.attempts, j.max_attempts,
              j.rerun_of, j.kind, j.claimed_at, j.claim_expires_at, j.priority, j.turn, j.spent_usd
  ), begun AS (
    INSERT INTO attempt (job_id, repository_id, claim_no, token, number, lane, runner, host, claimed_at)
    SELECT t.id, t.repository_id, t.claim_no, t.claim_token, t.attempts, l.name, in_runner, in_host, t.claimed_at FROM claimed t
    RETURNING attempt.id, attempt.job_id, attempt.uid
  ), told AS (
    INSERT INTO job_event (job_id, who, what, from_state, to_state, details)
    SELECT t.id, 'runner ' || in_runner, 'claim', 'pending', 'claimed',
           jsonb_build_object('claim_no', t.claim_no, 'host', in_host, 'probe', l.probing)
      FROM claimed t
  )
  SELECT t.id, b.id, t.claim_no::bigint, t.claim_token, b.uid, t.attempts::int, extract(epoch FROM t.claim_expires_at - clock_timestamp())::float8,
         t.kind, t.max_attempts::int, t.request_id, t.rerun_of,
         l.lease_s, l.run_timeout_s, l.stall_timeout_s, l.backoff_base_s, l.backoff_cap_s,
         r.forge, r.owner, r.name, r.forge_repo_id, r.default_branch, r.clone_url, i.number, i.url, i.approved_title, i.approved_body,
         (l.max_usd - t.spent_usd)::float8
    FROM claimed t
    JOIN begun b ON b.job_id = t.id JOIN repository r ON r.id = t.repository_id JOIN issue i ON i.id = t.issue_id
   ORDER BY t.priority DESC, t.turn, t.id;
END $$;

-- The claim of a lane in which something is counted: a limit, or a probe. Called by CLAIM in store/claim.py.
-- A row without job_id says: jobs stepped aside, commit and ask again. Only one repository is locked in a call, since a
-- second one could stand before it in the order of locks.
-- A lane's own limit is held by places, which claims take side by side. Where a repository counts, or a probe goes first,
-- claims come one by one, under the latch.
-- One plan for whatever limit and room (each would be thought worth its own), and by indexes, as in claim_these.
CREATE FUNCTION claim_counted(in_lane text, in_n int, in_runner text, in_host text) RETURNS SETOF claim_given
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
  l        lane;
  r        repository;
  c        record;
  counted  int;
  spent    int;
  moved    int;
  room     int := in_n;
  places   int[];             -- null: the lane has no limit
  passed   bigint[] := '{}';  -- locked by somebody, or to be avoided
  avoided  bigint;
  held     bigint;            -- the repository that is locked
  aside    int := 0;          -- how many stepped aside in this call
  again    boolean := false;
  given    int := 0;
BEGIN
  -- Before anything is read, so that the barrier waits for this claim or this claim sees the hold.
  LOCK TABLE attempt IN ROW EXCLUSIVE MODE;
  SELECT * INTO l FROM lane WHERE name = in_lane;
  IF l.probing OR l.repository_limits THEN
    PERFORM pg_advisory_xact_lock(lane_latch(in_lane));
    SELECT * INTO l FROM lane WHERE name = in_lane;
  END IF;
  IF l.name IS NULL OR NOT l.configured OR EXISTS (SELECT FROM lane_hold h WHERE h.lane = in_lane AND h.host IN ('', in_host)) THEN
    RETURN;
  END IF;
  IF l.probing AND l.probe_token IS NOT NULL THEN
    IF l.probe_since + probe_lives() > clock_timestamp() THEN RETURN; END IF;
    l.probing := false;
  END IF;
  IF l.probing THEN room := least(room, 1); END IF;
  IF l.max_running IS NOT NULL THEN
    places := take_places(in_lane, l.max_running, room);
    room := cardinality(places);
  END IF;
  IF NOT l.probing AND NOT l.repository_limits THEN
    -- Nothing but the lane is counted: all there is room for, in one walk as CLAIM has it.
    RETURN QUERY SELECT * FROM claim_these(l, ARRAY(
      SELECT walk.id FROM (
        SELECT j.id FROM job j WHERE j.state = 'pending' AND j.lane = in_lane
         ORDER BY j.priority DESC, j.turn, j.id LIMIT 100 FOR NO KEY UPDATE OF j SKIP LOCKED) walk
       LIMIT room), places, in_runner, in_host);
    RETURN;
  END IF;

  WHILE given < room LOOP
    SELECT j.id, j.repository_id INTO c FROM job j
     WHERE j.state = 'pending' AND j.lane = in_lane AND j.id <> ALL (passed)
     ORDER BY j.priority DESC, j.turn, j.id LIMIT 1;
    IF NOT FOUND THEN
      EXIT WHEN avoided IS NULL;
      passed := array_remove(passed, avoided);  -- no other job could go first
      avoided := NULL;
      l.probe_avoid_job := NULL;
      CONTINUE;
    END IF;
    IF l.probing AND c.id = l.probe_avoid_job THEN
      passed := passed || c.id;
      avoided := c.id;
      CONTINUE;
    END IF;

    SELECT * INTO r FROM repository WHERE id = c.repository_id;
    IF num_nonnulls(r.max_running, r.max_runs_per_day) > 0 THEN
      IF held <> r.id AND (given > 0 OR aside > 0 OR r.id < held) THEN
        again := given = 0;
        EXIT;
      END IF;
      held := r.id;
      SELECT * INTO r FROM repository WHERE id = c.repository_id FOR NO KEY UPDATE;
      counted := running_in_repository(r.id);
      spent := runs_today(r.id);
      IF counted >= r.max_running OR spent >= r.max_runs_per_day THEN
        -- A bounded step in one transaction: others wait for its locks.
        IF aside >= 100 THEN
          again := given = 0;
          EXIT;
        END IF;
        moved := rest_repository(r.id, in_lane, coalesce(counted >= r.max_running, false), coalesce(spent >= r.max_runs_per_day, false), 100);
        aside := aside + moved;
        IF moved = 0 THEN
          passed := passed || c.id;
        END IF;
        CONTINUE;
      END IF;
    END IF;

    -- Again, since a lock may have been waited for: no barrier stands behind a quota or breaker hold.
    EXIT WHEN EXISTS (SELECT FROM lane_hold h WHERE h.lane = in_lane AND h.host IN ('', in_host));
    PERFORM FROM job j WHERE j.id = c.id AND j.state = 'pending' AND j.lane = in_lane FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
      passed := passed || c.id;
      CONTINUE;
    END IF;
    given := given + 1;
    RETURN QUERY SELECT * FROM claim_these(l, ARRAY[c.id], places[given:given], in_runner, in_host);
  END LOOP;

  IF l.probing AND given = 1 THEN
    UPDATE lane SET probe_token = (SELECT j.claim_token FROM job j WHERE j.id = c.id), probe_since = clock_timestamp()
     WHERE lane.name = in_lane AND probing AND probe_token IS NULL;
  END IF;
  IF again AND aside > 0 THEN
    RETURN NEXT NULL::claim_given;
  END IF;
END $$;

-- ------------------------------------------------------------------------------------------------ holds of the machine

-- Remove one hold, if it is there (and due, if only that is wanted). After a quota or breaker hold one claim goes first.
CREATE FUNCTION end_hold(of_lane text, of_source text, of_host text, only_due boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  h lane_hold;
BEGIN
  PERFORM FROM lane WHERE name = of_lane FOR NO KEY UPDATE;
  PERFORM FROM lane_breaker WHERE lane = of_lane FOR NO KEY UPDATE;
  DELETE FROM lane_hold d
   WHERE d.lane = of_lane AND d.source = of_source AND d.host = of_host AND (NOT only_due OR d.until <= clock_timestamp())
  RETURNING * INTO h;
  IF h.lane IS NULL THEN RETURN false; END IF;
  IF h.source IN ('quota', 'breaker') THEN
    UPDATE lane SET probing = true, probe_token = NULL, probe_since = NULL, probe_avoid_job = h.job_id WHERE name = of_lane;
    UPDATE lane_breaker
       SET last_ended_at = CASE WHEN h.source = 'breaker' THEN clock_timestamp() ELSE last_ended_at END,
           quota_ended_at = CASE WHEN h.source = 'quota' THEN clock_timestamp() ELSE quota_ended_at END
     WHERE lane = of_lane;
  END IF;
  PERFORM pg_notify('tireless_lane', of_lane);
  RETURN true;
END $$;

-- A provider's limit holds the lane for every host. True when this job made its lane held twice in a row.
-- Attempts that were running already when the last hold began neither lengthen it nor make the next one longer.
CREATE FUNCTION hold_for_quota(j job, asked_s double precision, because text, policy jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  b       lane_breaker;
  h       lane_hold;
  cause   bigint;
  longest double precision := policy ->> 'max_hold_s';
  secs    double precision;
  counts  boolean;
BEGIN
  SELECT probe_avoid_job INTO cause FROM lane WHERE name = j.lane FOR NO KEY UPDATE;
  b := breaker_of(j.lane);
  SELECT * INTO h FROM lane_hold WHERE lane = j.lane AND source = 'quota' AND host = '';
  counts := j.claimed_at > coalesce(greatest(h.began_at, b.quota_ended_at), '-infinity');
  IF h.lane IS NOT NULL AND NOT counts THEN RETURN false; END IF;
  secs := CASE WHEN asked_s IS NOT NULL THEN greatest(asked_s, 1)
               ELSE least(longest, (policy ->> 'quota_base_s')::float8 * 2 ^ least(b.quotas, 30)) * (1 + random() / 4) END;
  INSERT INTO lane_hold (lane, source, until, reason, held_by, job_id)
  VALUES (j.lane, 'quota', clock_timestamp() + make_interval(secs => least(secs, longest)), because, 'runner ' || j.claimed_by, j.id)
  ON CONFLICT (lane, source, host) DO UPDATE
    SET until = greatest(lane_hold.until, EXCLUDED.until), reason = EXCLUDED.reason, held_by = EXCLUDED.held_by,
        job_id = EXCLUDED.job_id, grown = once_more(lane_hold.grown);
  UPDATE lane_breaker SET quotas = once_more(quotas) WHERE lane = j.lane AND counts;
  RETURN counts AND j.given_back > 0 AND j.given_back_by IS DISTINCT FROM 'repository' AND j.id = coalesce(h.job_id, cause);
END $$;

-- The breaker's row, locked, with what successes left that found it locked: they wait for nobody.
CREATE FUNCTION breaker_of(of_lane text) RETURNS lane_breaker LANGUAGE plpgsql AS $$
DECLARE
  b lane_breaker;
BEGIN
  INSERT INTO lane_breaker (lane) VALUES (of_lane) ON CONFLICT DO NOTHING;
  PERFORM FROM lane_breaker WHERE lane = of_lane FOR NO KEY UPDATE;
  DELETE FROM lane_success WHERE lane = of_lane;
  IF FOUND THEN
    UPDATE lane_breaker SET failures = 0, issues = '{}', opened = 0, quotas = 0 WHERE lane = of_lane;
  END IF;
  SELECT * INTO b FROM lane_breaker WHERE lane = of_lane;
  RETURN b;
END $$;

-- A failure counts; enough in a row over enough issues hold the lane, each time in a row twice as long.
CREATE FUNCTION count_failure(j job, policy jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  b    lane_breaker;
  secs double precision;
BEGIN
  b := breaker_of(j.lane);
  UPDATE lane_breaker k
     SET failures = once_more(k.failures),
         -- Only how many differ is asked, and never beyond a handful.
         issues = CASE WHEN j.issue_id = ANY (k.issues) OR cardinality(k.issues) >= 20 THEN k.issues ELSE k.issues || j.issue_id END
   WHERE k.lane = j.lane
  RETURNING * INTO b;
  IF b.failures < (policy ->> 'breaker_failures')::int OR cardinality(b.issues) < (policy ->> 'breaker_issues')::int
     OR j.claimed_at <= b.last_ended_at THEN
    RETURN;
  END IF;
  secs := least((policy ->> 'breaker_cap_s')::float8, (policy ->> 'breaker_base_s')::float8 * 2 ^ least(b.opened, 30));
  INSERT INTO lane_hold (lane, source, until, reason, held_by, job_id)
  VALUES (j.lane, 'breaker', clock_timestamp() + make_interval(secs => secs),
          b.failures || ' failures in a row over ' || cardinality(b.issues) || ' issues', 'runner ' || j.claimed_by, j.id)
  ON CONFLICT DO NOTHING;  -- held already: this attempt was claimed before that
  IF FOUND THEN
    UPDATE lane_breaker SET opened = once_more(opened) WHERE lane = j.lane;
  END IF;
END $$;

-- ------------------------------------------------------------------------------------------------ settle

-- What an end writes beside its own job, whatever becomes of that: of the repository, the provider (a probe, the breaker, a
-- quota) and the host. True when its job made its lane held twice in a row.
-- A success that finds the breaker's row locked waits for nobody.
CREATE FUNCTION settle_shared(
  j job, outcome text, counts int, probes boolean, doubtful boolean, cannot_start text, because text, asked_s double precision, policy jsonb
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF doubtful THEN
    UPDATE repository r SET doubted_at = clock_timestamp(), poll_not_before = '-infinity'
     WHERE r.id = j.repository_id AND r.doubted_at IS NULL;
  END IF;
  IF doubtful AND counts > 0 THEN
    -- An agent was paid in vain. Till the poller has asked, no other one is: whoever has a slot free would claim the next job
    -- at once. As many step aside as could be claimed meanwhile; locked ones have been.
    UPDATE repository r SET readable = false, unreadable_reason = 'it refused what an agent had made for it; wait till `tireless serve` has asked what it is now'
     WHERE r.id = j.repository_id AND r.readable;
    WITH next AS MATERIALIZED (
      SELECT k.id FROM job k WHERE k.state = 'pending' AND k.repository_id = j.repository_id
       ORDER BY k.turn, k.id LIMIT 500 FOR NO KEY UPDATE SKIP LOCKED
    ), moved AS (
      UPDATE job k SET state = 'waiting' WHERE k.id = ANY (ARRAY(SELECT n.id FROM next n)) RETURNING k.id, k.state, k.reason
    )
    INSERT INTO job_event (job_id, who, what, from_state, to_state, reason)
    SELECT m.id, 'runner ' || j.claimed_by, 'wait', 'pending', m.state, m.reason FROM moved m;
  END IF;
  IF probes THEN
    UPDATE lane l
       SET probing = (outcome IN ('quota', 'shutdown', 'cancelled', 'workspace_error') OR outcome = 'done' AND counts = 0)
                     AND l.probe_since + probe_lives() > clock_timestamp(),
           probe_token = NULL, probe_since = NULL
     WHERE l.name = j.lane AND l.probe_token = j.claim_token;
  END IF;
  IF counts > 0 THEN
    PERFORM count_failure(j, policy);
  ELSIF counts < 0 AND EXISTS (SELECT FROM lane_breaker k WHERE k.lane = j.lane AND (k.failures > 0 OR k.opened > 0 OR k.quotas > 0)) THEN
    PERFORM FROM lane_breaker k WHERE k.lane = j.lane FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE lane_breaker k SET failures = 0, issues = '{}', opened = 0, quotas = 0 WHERE k.lane = j.lane;
    ELSE
      INSERT INTO lane_success (lane) VALUES (j.lane);  -- whoever counts next finds it (breaker_of)
    END IF;
  END IF;
  IF cannot_start IS NOT NULL THEN
    INSERT INTO lane_hold (lane, source, host, until, reason, held_by, job_id)
    VALUES (j.lane, 'setup', j.claimed_host, clock_timestamp() + make_interval(secs => (policy ->> 'setup_hold_s')::float8),
            cannot_start, 'runner ' || j.claimed_by, j.id)
    ON CONFLICT (lane, source, host) DO UPDATE
      SET until = EXCLUDED.until, reason = EXCLUDED.reason, held_by = EXCLUDED.held_by, job_id = EXCLUDED.job_id, grown = once_more(lane_hold.grown);
  END IF;
  RETURN outcome = 'quota' AND hold_for_quota(j, asked_s, because, policy);
END $$;

-- The last words on attempts, each fenced by its token; what each comes to was decided in store/settle.py, whose objects
-- `ends` is a list of; `ids` are their jobs. In one transaction, which is one commit, and in few statements: a job more is rows.
-- A row for each token. First 'done', 'already' (this attempt ended thus: the reply to the commit was lost) or 'lost'; behind
-- 'done' whom the caller wakes when this has committed; with `notify` they are notified here (wake_all).
-- `alone` is one end, and waits for whoever has its locks. Several wait for nobody, and a row is missing for who is to be
-- settled alone: whose claim is gone; whose job or breaker is locked (a renewal has several jobs, too); whose end locks what
-- stands before jobs in the order of locks, or is no matter of its own job (a limit, a plan, a probe, a hold, a repository).
-- By keys whatever the planner believes: its plans are made while tables are small, and stay with the session.
CREATE FUNCTION settle_claims(ids bigint[], ends jsonb, policy jsonb, alone boolean, notify boolean)
RETURNS TABLE (token uuid, answer text[]) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
  e        record;
  one      job;
  m        record;
  held     bigint[] := '{}';   -- the jobs that are settled, locked
  kin      boolean := false;   -- is it a plan, or a child of one?
  limited  bigint;             -- its repository, if that has a limit
  cleared  text[] := '{}';     -- lanes whose breaker has nothing counted since the last failure here
  suspects bigint[] := '{}';
  also     text[] := '{}';     -- whom to wake beside those that each job wakes
  ended    bigint[] := '{}';
  issues   bigint[] := '{}';   -- theirs
  wakes    text[];
BEGIN
  -- Before any repository or lane: who shuts claims out has `attempt` first, and those after it.
  LOCK TABLE attempt IN ROW EXCLUSIVE MODE;
  IF alone THEN
    -- Read plainly, for locks that come before the job's and for what is seldom so. Only this claim is `probe_token`, since
    -- before it was handed out.
    SELECT s.*, b.issue_id, b.repository_id, num_nonnulls(r.max_running, r.max_runs_per_day) > 0 AS limited,
           EXISTS (SELECT FROM child c WHERE c.issue_id = b.issue_id AND c.ended_at IS NULL) AS child,
           EXISTS (SELECT FROM child c WHERE c.job_id = b.id) AS plan,
           l.probe_token IS NOT DISTINCT FROM s.token AS probes
      INTO e
      FROM jsonb_to_record(ends -> 0) AS s (token uuid, outcome text, "to" text, counts int, reason text, asked_s double precision,
                                            cannot_start text, doubtful boolean)
      LEFT JOIN job b ON b.id = ids[1] LEFT JOIN repository r ON r.id = b.repository_id LEFT JOIN lane l ON l.name = b.lane;
    IF e.limited OR e.doubtful THEN
      PERFORM FROM repository r WHERE r.id = e.repository_id FOR NO KEY UPDATE;
    END IF;
    IF e."to" = 'delivered' AND e.child THEN
      PERFORM lock_plan_of(e.issue_id);
    END IF;
    SELECT b.* INTO one FROM job b WHERE b.id = ids[1] AND b.claim_token = e.token AND b.state = 'claimed' FOR NO KEY UPDATE;
    IF NOT FOUND THEN
      token := e.token;
      answer := ARRAY[CASE WHEN EXISTS (SELECT FROM attempt a WHERE a.job_id = ids[1] AND a.token = e.token AND a.outcome = e.outcome)
                           THEN 'already' ELSE 'lost' END];
      RETURN NEXT;
      RETURN;
    END IF;
    held := ids;
    kin := e.child OR e.plan;
    limited := CASE WHEN e.limited THEN e.repository_id END;
    IF (e.counts <> 0 OR e.probes OR e.doubtful OR e.cannot_start IS NOT NULL OR e.outcome = 'quota')
       AND settle_shared(one, e.outcome, e.counts, e.probes, e.doubtful, e.cannot_start, e.reason, e.asked_s, policy) THEN
      suspects := ids;
    END IF;
    IF e.probes THEN also := also || ('tireless_lane ' || one.lane); END IF;
    IF e.doubtful THEN also := also || 'tireless_look'::text; END IF;
  ELSE
    FOR e IN
      WITH picked AS MATERIALIZED (
        SELECT j AS job, s.ordinality, s.outcome, s.counts
          FROM ROWS FROM (jsonb_to_recordset(ends) AS (
                 job_id bigint, token uuid, outcome text, counts int, cannot_start text, doubtful boolean)) WITH ORDINALITY AS s
          JOIN job j ON j.id = s.job_id AND j.claim_token = s.token
          JOIN repository r ON r.id = j.repository_id
          JOIN lane l ON l.name = j.lane
         WHERE j.id = ANY (ids) AND j.state = 'claimed' AND s.outcome <> 'quota' AND s.cannot_start IS NULL AND NOT s.doubtful
           AND num_nonnulls(r.max_running, r.max_runs_per_day) = 0 AND l.probe_token IS DISTINCT FROM s.token
           -- OFFSET: asked by key for each one, never joined.
           AND NOT EXISTS (SELECT FROM child c WHERE c.issue_id = j.issue_id AND c.ended_at IS NULL OFFSET 0)
           AND NOT EXISTS (SELECT FROM child c WHERE c.job_id = j.id OFFSET 0)
           FOR NO KEY UPDATE OF j SKIP LOCKED
      ), breakers AS MATERIALIZED (
        -- Before any mirror or look, which those of others may wait for.
        SELECT k.lane FROM lane_breaker k WHERE k.lane = ANY (ARRAY(SELECT (p.job).lane FROM picked p WHERE p.counts > 0)) FOR NO KEY UPDATE SKIP LOCKED
      )
      SELECT p.job, p.outcome, p.counts FROM picked p
       WHERE p.counts <= 0 OR (p.job).lane = ANY (ARRAY(SELECT b.lane FROM breakers b))
       ORDER BY p.ordinality  -- of arrival: a success between failures has them begin anew
    LOOP
      held := held || (e.job).id;
      IF e.counts > 0 OR e.counts < 0 AND (e.job).lane <> ALL (cleared) THEN
        PERFORM settle_shared(e.job, e.outcome, e.counts, false, false, NULL, NULL, NULL, policy);
        cleared := CASE WHEN e.counts > 0 THEN array_remove(cleared, (e.job).lane) ELSE cleared || (e.job).lane END;
      END IF;
    END LOOP;
  END IF;

  FOR m IN
    WITH mine AS MATERIALIZED (
      SELECT s.*, j.claim_no, j.claimed_by, j.cancel_requested, j.fresh_from, j.attempts >= j.max_attempts AS is_last, b.back_by,
             CASE WHEN b.back_by <> j.given_back_by THEN 1 WHEN b.back_by IS NOT NULL THEN once_more(j.given_back) WHEN s.burns THEN 0
                  ELSE j.given_back END AS back
        FROM jsonb_to_recordset(ends) AS s (
               job_id bigint, token uuid, outcome text, burns boolean, "to" text, code text, parked text, question text,
               wait_s double precision, wait_reason text, reason text, summary text, exit_code int, usage jsonb,
               output_head text, output_tail text, permanent boolean, head text)
       CROSS JOIN LATERAL (SELECT CASE WHEN s.outcome IN ('quota', 'blocked') THEN 'agent' WHEN s.permanent THEN 'repository' END) AS b (back_by)
        JOIN job j ON j.id = s.job_id AND j.claim_token = s.token
       WHERE j.id = ANY (held)
    ), closed AS (
      UPDATE attempt a
         SET ended_at = clock_timestamp(), outcome = s.outcome, burned = s.burns, reason = s.reason, summary = s.summary,
             exit_code = s.exit_code, usage = coalesce(s.usage, a.usage), head = s.head, output_head = s.output_head, output_tail = s.output_tail
        FROM mine s
       WHERE a.job_id = ANY (held) AND a.job_id = s.job_id AND a.claim_no = s.claim_no
      RETURNING a.job_id, a.id, a.recorded_at, (a.usage ->> 'usd')::numeric AS usd
    ), becomes AS MATERIALIZED (
      SELECT s.job_id, s.token, s.outcome, s.burns, s.wait_reason, s.summary, s.claim_no, s.claimed_by, s.back, s.back_by,
             c.id AS attempt_id, c.usd, s."to" = 'publishing' AND c.recorded_at IS NULL AS unrecorded,
             CASE f.fate WHEN 'cancelled' THEN 'cancelled' WHEN 'exhausted' THEN 'failed' ELSE s."to" END AS to_state,
             CASE f.fate WHEN 'cancelled' THEN s.cancel_requested WHEN 'exhausted' THEN 'exhausted' ELSE s.code END AS to_code,
             CASE WHEN f.fate IN ('held twice', 'given back', 'permanent') THEN 'suspect' WHEN f.fate = 'no progress' THEN 'no_progress'
                  ELSE s.parked END AS parks,
             CASE f.fate
               WHEN 'held twice' THEN 'This job made its lane held twice in a row by reporting a provider''s limit.'
               WHEN 'given back' THEN 'This job was given back ' || s.back || ' times in a row, by a provider''s limit or because it was blocked.'
               WHEN 'permanent' THEN s.reason
               WHEN 'no progress' THEN format('Its last %s attempts ended alike (%s) and left the same behind. The last one: %s',
                                              policy ->> 'same_head', s.outcome, s.reason)
               ELSE s.question END AS asks,
             CASE WHEN s.outcome = 'blocked' AND s.wait_s IS NULL
                    THEN least((policy ->> 'blocked_cap_s')::float8, (policy ->> 'blocked_base_s')::float8 * 2 ^ least(s.back - 1, 30))
                  -- not at random: a proxy that answers for a forge away has minutes
                  WHEN s.permanent
                    THEN least((policy ->> 'permanent_cap_s')::float8, (policy ->> 'permanent_base_s')::float8 * 2 ^ least(s.back - 1, 30))
                  ELSE s.wait_s END AS waits_s
        FROM mine s
        JOIN closed c ON c.job_id = s.job_id
       CROSS JOIN LATERAL (
         SELECT CASE
             -- A cancel asked for while it ran stands, whatever came of the run: nothing was delivered yet.
             WHEN s.cancel_requested IS NOT NULL THEN 'cancelled'
             WHEN s.job_id = ANY (suspects) THEN 'held twice'
             WHEN s."to" = 'pending' AND s.burns AND s.parked IS NULL AND s.is_last THEN 'exhausted'
             WHEN s.back_by = 'agent' AND s.parked IS NULL AND s.back >= (policy ->> 'give_backs')::int THEN 'given back'
             WHEN s.permanent AND s.back >= (policy ->> 'permanent_give_backs')::int THEN 'permanent'
             -- Nothing new so many times in a row: this attempt, and those before it that could have brought something.
             WHEN s.head IS NOT NULL AND s."to" = 'pending' AND s.parked IS NULL AND s.claim_no > s.fresh_from
                  AND (SELECT count(*) FROM (
                         SELECT a.outcome, a.head FROM attempt a
                          WHERE a.job_id = s.job_id AND a.claim_no > s.fresh_from AND a.claim_no < s.claim_no AND a.head IS NOT NULL
                          ORDER BY a.claim_no DESC LIMIT (policy ->> 'same_head')::int - 1) l
                        WHERE l.outcome = s.outcome AND l.head = s.head) >= (policy ->> 'same_head')::int - 1 THEN 'no progress'
             END AS fate OFFSET 0) f
    ), moved AS (
      UPDATE job j
         SET state = b.to_state, reason = b.to_code,
             finished_at = CASE WHEN b.to_state IN ('delivered', 'failed', 'cancelled') THEN clock_timestamp() END,
             attempts = j.attempts - CASE WHEN b.burns THEN 0 ELSE 1 END, given_back = b.back,
             given_back_by = coalesce(b.back_by, j.given_back_by), spent_usd = j.spent_usd + coalesce(b.usd, 0),
             claimed_by = NULL, claimed_host = NULL, claim_token = NULL, claimed_at = NULL, claim_expires_at = NULL, claim_place = NULL,
             cancel_requested = NULL,
             parked = CASE WHEN b.to_state = 'pending' THEN b.parks END,
             parked_at = CASE WHEN b.to_state = 'pending' AND b.parks IS NOT NULL THEN clock_timestamp() END,
             question = CASE WHEN b.to_state = 'pending' THEN b.asks END,
             not_before = CASE WHEN b.to_state = 'pending' THEN clock_timestamp() + make_interval(secs => b.waits_s) END,
             not_before_reason = CASE WHEN b.to_state = 'pending' AND b.waits_s IS NOT NULL THEN b.wait_reason END,
             result_attempt = CASE WHEN b.to_state = 'publishing' THEN b.attempt_id END,
             summary = coalesce(nullif(b.summary, ''), j.summary)
        FROM becomes b
       WHERE j.id = ANY (held) AND j.id = b.job_id
      RETURNING j.id, j.issue_id, j.state, j.reason, j.lane, b.token, b.claim_no, b.claimed_by, b.outcome, b.burns, b.unrecorded
    ), told AS (
      INSERT INTO job_event (job_id, who, what, from_state, to_state, reason, details)
      SELECT v.id, 'runner ' || v.claimed_by, 'settle', 'claimed', v.state, v.reason,
             jsonb_build_object('claim_no', v.claim_no, 'outcome', v.outcome, 'burned', v.burns)
        FROM moved v
    )
    SELECT v.id, v.issue_id, v.state, v.lane, v.token, v.claim_no, v.unrecorded FROM moved v
  LOOP
    IF m.unrecorded THEN
      RAISE EXCEPTION 'attempt % of job % ends as done, but no result was recorded', m.claim_no, m.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'done_has_a_record';
    END IF;
    held := array_remove(held, m.id);
    wakes := 'tireless_mirror'::text || also;
    IF m.state IN ('delivered', 'failed', 'cancelled') THEN
      ended := ended || m.id;
      issues := issues || m.issue_id;
      wakes := wakes || 'tireless_look'::text;
    ELSIF m.state = 'publishing' THEN
      wakes := wakes || 'tireless_publish'::text;
    ELSIF m.state = 'pending' THEN
      wakes := wakes || ('tireless_lane ' || m.lane);
    END IF;
    IF notify THEN
      PERFORM wake_all(wakes);
      wakes := '{}';
    END IF;
    token := m.token;
    answer := 'done'::text || wakes;
    RETURN NEXT;
  END LOOP;
  IF held <> '{}' THEN
    RAISE EXCEPTION 'jobs % have no attempt with the number of their claim', held;
  END IF;

  IF kin AND ended <> '{}' THEN
    PERFORM jobs_ended(ended);
  ELSIF ended <> '{}' THEN
    PERFORM look_again(issues, 'job ended');
  END IF;
  IF limited IS NOT NULL THEN
    PERFORM wake_repository(limited, 'runner ' || one.claimed_by);
  END IF;
END $$;

-- ------------------------------------------------------------------------------------------------ sweeps

-- Take back claims whose lease has ended: asked to cancel, else a recorded result, else none left, else pending again.
-- Waits for nobody: what is locked is renewed or settled at this moment. How many moved, and whom that wakes.
CREATE FUNCTION expire_claims(up_to int, notify boolean, OUT moved int, OUT wakes text[]) LANGUAGE plpgsql
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  stale bigint[];
  ended bigint[] := '{}';
  m     record;
BEGIN
  moved := 0;
  wakes := '{}';
  LOCK TABLE attempt IN ROW EXCLUSIVE MODE;
  WITH late AS MATERIALIZED (
    SELECT j.id FROM job j WHERE j.state = 'claimed' AND j.claim_token IS NOT NULL AND j.claim_expires_at < clock_timestamp()
     ORDER BY j.id LIMIT up_to FOR NO KEY UPDATE SKIP LOCKED
  )
  SELECT coalesce(array_agg(late.id), '{}') INTO stale FROM late;
  -- A new statement, a new snapshot: a result recorded while the claims were being locked is seen.
  FOR m IN
    WITH late AS MATERIALIZED (
      SELECT j.id, j.claim_token, j.claim_no, j.claimed_by, a.id AS attempt_id, a.recorded_at IS NOT NULL AS recorded,
             coalesce((a.usage ->> 'usd')::numeric, 0) AS usd,
             (SELECT right(string_agg(o.text, '' ORDER BY o.seq), 16000) FROM output_chunk o WHERE o.attempt_id = a.id) AS output
        FROM job j
        -- Taken back also where somebody deleted the attempt: nobody else would. One by one, however many there are thought to be.
        LEFT JOIN LATERAL (SELECT * FROM attempt o WHERE o.job_id = j.id AND o.claim_no = j.claim_no OFFSET 0) a ON true
       WHERE j.id = ANY (stale)
    ), moved AS (
      UPDATE job j
         SET state = CASE WHEN j.cancel_requested IS NOT NULL THEN 'cancelled' WHEN t.recorded THEN 'publishing'
                          WHEN j.attempts >= j.max_attempts THEN 'failed' ELSE 'pending' END,
             reason = CASE WHEN j.cancel_requested IS NOT NULL THEN j.cancel_requested WHEN t.recorded THEN NULL
                           WHEN j.attempts >= j.max_attempts THEN 'exhausted' END,
             finished_at = CASE WHEN j.cancel_requested IS NOT NULL OR (NOT t.recorded AND j.attempts >= j.max_attempts)
                                THEN clock_timestamp() END,
             result_attempt = CASE WHEN j.cancel_requested IS NULL AND t.recorded THEN t.attempt_id END,
             given_back = 0, cancel_requested = NULL, spent_usd = j.spent_usd + t.usd,
             claimed_by = NULL, claimed_host = NULL, claim_token = NULL, claimed_at = NULL, claim_expires_at = NULL, claim_place = NULL
        FROM late t WHERE j.id = t.id
      RETURNING j.id, j.state, j.reason, j.lane
    ), ended AS (
      UPDATE attempt a
         SET ended_at = clock_timestamp(), outcome = CASE WHEN s.state = 'publishing' THEN 'done' ELSE 'lease_lost' END, burned = true,
             reason = 'the lease ended without a word of the runner', output_tail = t.output
        FROM late t JOIN moved s ON s.id = t.id WHERE a.id = t.attempt_id
    ), told AS (
      INSERT INTO job_event (job_id, who, what, from_state, to_state, reason, details)
      SELECT s.id, 'sweeper', 'expire', 'claimed', s.state, s.reason, jsonb_build_object('claim_no', t.claim_no, 'runner', t.claimed_by)
        FROM moved s JOIN late t ON t.id = s.id
    ), probed AS MATERIALIZED (
      SELECT l.name FROM lane l WHERE l.probe_token = ANY (ARRAY(SELECT t.claim_token FROM late t)) ORDER BY l.name FOR NO KEY UPDATE
    ), voided AS (
      UPDATE lane l SET probing = l.probe_since + probe_lives() > clock_timestamp(), probe_token = NULL, probe_since = NULL
       WHERE l.name = ANY (ARRAY(SELECT p.name FROM probed p))
      RETURNING l.name
    )
    SELECT s.id, s.state, s.lane, v.name AS probed FROM moved s LEFT JOIN voided v ON v.name = s.lane ORDER BY s.id
  LOOP
    moved := moved + 1;
    IF m.state IN ('failed', 'cancelled') THEN
      ended := ended || m.id;
    ELSIF m.state = 'publishing' THEN
      wakes := wakes || 'tireless_publish'::text;
    END IF;
    IF m.state = 'pending' OR m.probed IS NOT NULL THEN
      wakes := wakes || ('tireless_lane ' || m.lane);
    END IF;
    wakes := wakes || 'tireless_mirror'::text;
  END LOOP;
  IF ended <> '{}' THEN
    PERFORM jobs_ended(ended);
    wakes := wakes || 'tireless_look'::text;
  END IF;
  IF notify THEN
    PERFORM wake_all(wakes);
  END IF;
END $$;

-- Wake what time wakes. One with no attempt left that nobody need be asked about ends instead. How many moved, and whom that wakes.
CREATE FUNCTION wake_due(up_to int, notify boolean, OUT moved int, OUT wakes text[]) LANGUAGE plpgsql AS $$
DECLARE
  due    bigint[];
  of_repositories bigint[];
  ended  bigint[] := '{}';
  m      record;
  right_now timestamptz := clock_timestamp();  -- asked once: else no index serves it
BEGIN
  moved := 0;
  wakes := '{}';
  -- More than is taken below, so that locked ones do not hide the rest.
  SELECT array_agg(d.id), array_agg(DISTINCT d.repository_id) INTO due, of_repositories FROM (
    SELECT j.id, j.repository_id FROM job j WHERE j.state = 'waiting' AND j.not_before <= right_now
     ORDER BY j.not_before, j.id LIMIT up_to * 4) d;
  PERFORM FROM repository r WHERE r.id = ANY (of_repositories) ORDER BY r.id FOR NO KEY UPDATE;
  FOR m IN
    WITH mine AS MATERIALIZED (
      SELECT j.id, j.attempts >= j.max_attempts AND j.parked IS NULL AND NOT j.hold AND j.waits_for = '{}'
                   AND NOT j.repository_full AND NOT j.day_limit AS exhausted
        FROM job j WHERE j.id = ANY (due) AND j.state = 'waiting' AND j.not_before <= right_now
       ORDER BY j.not_before, j.id LIMIT up_to FOR NO KEY UPDATE SKIP LOCKED
    ), moved AS (
      UPDATE job j
         SET not_before = NULL, not_before_reason = NULL,
             state = CASE WHEN t.exhausted THEN 'failed' ELSE 'pending' END, reason = CASE WHEN t.exhausted THEN 'exhausted' END,
             finished_at = CASE WHEN t.exhausted THEN clock_timestamp() END
        FROM mine t WHERE j.id = t.id
      RETURNING j.id, j.state, j.reason, j.lane
    ), told AS (
      INSERT INTO job_event (job_id, who, what, from_state, to_state, reason)
      SELECT s.id, 'sweeper', CASE WHEN s.state = 'failed' THEN 'exhaust' ELSE 'wake' END, 'waiting', s.state, s.reason
        FROM moved s WHERE s.state <> 'waiting'
    )
    SELECT s.id, s.state, s.lane FROM moved s ORDER BY s.id
  LOOP
    moved := moved + 1;
    IF m.state = 'failed' THEN
      ended := ended || m.id;
    ELSIF m.state = 'pending' THEN
      wakes := wakes || ('tireless_lane ' || m.lane);
    END IF;
  END LOOP;
  IF ended <> '{}' THEN
    PERFORM jobs_ended(ended);
    wakes := wakes || '{tireless_look, tireless_mirror}'::text[];
  END IF;
  IF notify THEN
    PERFORM wake_all(wakes);
  END IF;
END $$;

-- Wake what stepped aside for a limit, wherever there is room again: a new day, a changed limit, a job woken in vain.
CREATE FUNCTION wake_full() RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  reached bigint := 0;
  woken   int := 0;
BEGIN
  LOOP
    SELECT j.repository_id INTO reached FROM job j
     WHERE j.state = 'waiting' AND (j.repository_full OR j.day_limit) AND j.repository_id > reached
     ORDER BY j.repository_id LIMIT 1;
    EXIT WHEN NOT FOUND;
    PERFORM FROM repository r WHERE r.id = reached FOR NO KEY UPDATE;
    woken := woken + wake_repository(reached, 'sweeper');
  END LOOP;
  RETURN woken;
END $$;

-- End the holds that are due, and probes that have lived long enough. How many holds ended.
CREATE FUNCTION end_due_holds() RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  h     record;
  ended int := 0;
BEGIN
  FOR h IN SELECT d.lane, d.source, d.host FROM lane_hold d WHERE d.until <= clock_timestamp() ORDER BY 1, 2, 3 LOOP
    IF end_hold(h.lane, h.source, h.host, true) THEN
      ended := ended + 1;
    END IF;
  END LOOP;
  FOR h IN
    -- Waits for nobody: lanes of the loop above are locked.
    WITH lived AS MATERIALIZED (
      SELECT l.name FROM lane l
       WHERE l.probing AND l.probe_token IS NOT NULL AND l.probe_since + probe_lives() <= clock_timestamp()
       ORDER BY l.name FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE lane l SET probing = false, probe_token = NULL, probe_since = NULL
     WHERE l.name = ANY (ARRAY(SELECT d.name FROM lived d))
    RETURNING l.name
  LOOP
    PERFORM pg_notify('tireless_lane', h.name);
  END LOOP;
  RETURN ended;
END $$;

-- ------------------------------------------------------------------------------------------------ what explain reads

-- The first gate after enqueue that keeps a job from being claimed; null: a runner of its lane, on a host that has no
-- hold of its own, takes it when nothing else is pending. CLAIM's WHERE and claim_counted() ask the same in the same order.
-- By the time of the statement: with a clock in it, of which each look is another, no plan could begin at the job that is
-- asked for, and would judge every one that rests.
CREATE VIEW job_gate AS
SELECT j.id AS job_id, j.issue_id, j.lane, j.state,
       CASE WHEN j.state = 'waiting' THEN j.reason
            WHEN NOT l.configured THEN 'lane_not_configured'
            WHEN h.source IS NOT NULL THEN 'lane_held'
            WHEN running_in_lane(j.lane) >= l.max_running THEN 'lane_full'
            WHEN running_in_repository(j.repository_id) >= r.max_running THEN 'repository_full'
            WHEN runs_today(j.repository_id) >= r.max_runs_per_day THEN 'day_limit'
            WHEN l.probing AND l.probe_token IS NOT NULL AND l.probe_since + probe_lives() > statement_timestamp() THEN 'probing'
       END AS gate,
       h.source AS hold_source, h.reason AS hold_reason, h.until AS hold_until, h.held_by AS hold_by,
       ARRAY(SELECT s.host FROM lane_hold s WHERE s.lane = j.lane AND s.host <> '' ORDER BY 1) AS held_hosts,
       l.max_running AS lane_max_running, r.max_running AS repository_max_running, r.max_runs_per_day,
       j.not_before
  FROM job j
  JOIN lane l ON l.name = j.lane
  JOIN repository r ON r.id = j.repository_id
  LEFT JOIN LATERAL (
    SELECT d.source, d.reason, d.until, d.held_by FROM lane_hold d WHERE d.lane = j.lane AND d.host = ''
     ORDER BY array_position(ARRAY['operator', 'quota', 'breaker'], d.source) LIMIT 1) h ON true
 WHERE j.state IN ('pending', 'waiting');
