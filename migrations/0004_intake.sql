-- What intake asks of the database: whom a plan's child waits for, and who passed in a repository before.

-- A child waits for its plan until the plan's job has ended, and for the siblings it depends on until their issues are
-- closed, whatever the forge's own dependencies show. A plan that ends otherwise than delivered frees its children of
-- itself and of siblings that were never created. Names are those people use: owner/repo#n.
CREATE FUNCTION child_waits_for(of_issue bigint) RETURNS text[] LANGUAGE sql STABLE AS $$
  SELECT coalesce(array_agg(r.owner || '/' || r.name || '#' || w.number ORDER BY w.number), '{}')
    FROM child c
    JOIN issue p ON p.id = c.plan_issue_id
    JOIN repository r ON r.id = p.repository_id
   CROSS JOIN LATERAL (
     SELECT p.number FROM job j
      WHERE j.id = c.job_id AND j.state IN ('pending', 'waiting', 'claimed', 'publishing')
      UNION
     SELECT s.number
       FROM (SELECT DISTINCT ON (b.key) b.number, b.ended_reason FROM child b
              WHERE b.plan_issue_id = c.plan_issue_id AND b.key = ANY (c.depends_on) ORDER BY b.key, b.id DESC) s
       LEFT JOIN issue i ON i.repository_id = p.repository_id AND i.number = s.number
      -- the issue's row is right where there is one: a closed issue may be opened again, an ended child stays ended
      WHERE s.number IS NOT NULL AND coalesce(i.open, coalesce(s.ended_reason, '') NOT IN ('closed', 'gone'))) w
   WHERE c.issue_id = of_issue
$$;

-- What the forge says blocks an issue, as last read. `repo` is empty for one the bot may not read, which counts as open.
CREATE TABLE dependency (
  issue_id      bigint NOT NULL REFERENCES issue (id),
  repo          text NOT NULL,                               -- 'owner/name', as the forge named it
  number        int NOT NULL,
  repository_id bigint REFERENCES repository (id),           -- where it is watched: names change
  open          boolean NOT NULL,
  asked_at      timestamptz NOT NULL,                        -- when the read that said so was sent
  PRIMARY KEY (issue_id, repo, number)
);
-- Whom to look at when an issue is closed or opened again.
CREATE INDEX dependency_on ON dependency (repository_id, number) WHERE repository_id IS NOT NULL;

-- What a plan has split up is not built as one as well while parts of it are not done: who asks to have it implemented
-- waits for them. A part that was closed may be opened again; proposals are nobody's parts.
CREATE FUNCTION parts_of(of_issue bigint) RETURNS text[] LANGUAGE sql STABLE AS $$
  SELECT coalesce(array_agg(r.owner || '/' || r.name || '#' || c.number ORDER BY c.number), '{}')
    FROM child c
    JOIN issue p ON p.id = c.plan_issue_id
    JOIN repository r ON r.id = p.repository_id
    LEFT JOIN issue i ON i.id = c.issue_id
   WHERE c.plan_issue_id = of_issue AND NOT c.proposal AND c.number IS NOT NULL
     AND (c.ended_at IS NULL OR (c.ended_reason = 'closed' AND i.open))
$$;

-- The issues whose jobs may wait for others when a child of this plan ends or lives again: the plan's own, and its children's.
CREATE FUNCTION kin_of(of_plan bigint) RETURNS bigint[] LANGUAGE sql STABLE AS $$
  SELECT of_plan || ARRAY(SELECT c.issue_id FROM child c WHERE c.plan_issue_id = of_plan)
$$;

-- All that a job of this kind of this issue waits for. Of two readings of a blocker, its own and that beside the issue,
-- the later counts.
CREATE FUNCTION issue_waits_for(of_issue bigint, of_kind text) RETURNS text[] LANGUAGE sql STABLE AS $$
  SELECT coalesce(array_agg(w.name ORDER BY w.number, w.name), '{}')
    FROM (
      SELECT c.name, split_part(c.name, '#', 2)::int AS number FROM unnest(child_waits_for(of_issue)) AS c (name)
       UNION
      SELECT c.name, split_part(c.name, '#', 2)::int FROM unnest(parts_of(of_issue)) AS c (name)
       WHERE of_kind = 'implement'
       UNION
      SELECT CASE WHEN d.repo = '' THEN 'an issue the bot may not read'
                  ELSE coalesce(r.owner || '/' || r.name, d.repo) || '#' || d.number END, d.number
        FROM dependency d
        LEFT JOIN repository r ON r.id = d.repository_id
        LEFT JOIN issue i ON i.repository_id = r.id AND i.number = d.number AND r.tracked
       WHERE d.issue_id = of_issue AND CASE WHEN i.asked_at > d.asked_at THEN i.open ELSE d.open END) w
$$;

-- Whose act counted in a repository before: his comments and reopenings count too.
CREATE INDEX verdict_allowed ON verdict (actor_id) WHERE allowed;

-- Whoever approves the stored text (an operator, a later label) ends the reason that it was not.
CREATE FUNCTION issue_approved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.triage_code := NULL;
  NEW.triage_details := '{}';
  RETURN NEW;
END $$;
CREATE TRIGGER issue_approved BEFORE UPDATE OF approved_hash ON issue FOR EACH ROW
  WHEN (NEW.triage_code = 'needs_approval' AND NEW.approved_hash = NEW.content_hash)
  EXECUTE FUNCTION issue_approved();

-- A plan's child is met by its number before its issue has a row.
CREATE INDEX child_number ON child (number) WHERE number IS NOT NULL;

-- The webhook `tireless init` made, by the forge's own ids. A forge never shows a secret: the print of ours tells whether
-- the hook there still has the one that is configured.
CREATE TABLE hook (
  forge         text NOT NULL,
  forge_repo_id bigint NOT NULL,
  hook_id       bigint NOT NULL,
  secret_print  text NOT NULL,
  made_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (forge, forge_repo_id)
);

-- Is a runner of this lane there? For people: a restart is no absence, and no claim depends on it.
CREATE FUNCTION lane_served(of_lane text) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT EXISTS (SELECT FROM runner u
                  WHERE of_lane = ANY (u.lanes) AND u.seen_at > clock_timestamp() - interval '10 minutes')
$$;

-- What keeps a lane's pending jobs waiting, beside their turn: where this changes, their comments say something else.
CREATE FUNCTION lane_mark(of_lane text) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT md5(concat_ws('|', l.configured, lane_served(l.name), (
           SELECT string_agg(concat_ws('|', h.source, h.reason, h.until, h.held_by), '|' ORDER BY h.source)
             FROM lane_hold h WHERE h.lane = l.name AND h.host = '')))
    FROM lane l WHERE l.name = of_lane
$$;

-- The search for the issues of all repositories of an owner, which stands in for their polls: its cursor, take, backoff.
CREATE TABLE owner_poll (
  forge           text NOT NULL REFERENCES forge (name),
  owner           text NOT NULL,                              -- in small letters
  since           moment,                                     -- as repository has them
  newest_seen     moment,
  newest_first_seen_at moment,
  asked_at        timestamptz NOT NULL,                       -- our clock, before what set the cursor was asked for
  listed_at       timestamptz NOT NULL DEFAULT clock_timestamp(),  -- when its repositories were last looked at
  poll_not_before timestamptz NOT NULL DEFAULT '-infinity',
  poll_failures   tally NOT NULL DEFAULT 0,
  poll_error      text,
  take_token      uuid,
  take_by         text,
  take_until      timestamptz,
  PRIMARY KEY (forge, owner),
  CONSTRAINT owner_take_is_whole_and_ends CHECK (num_nonnulls(take_token, take_by, take_until) IN (0, 3) AND take_until < 'infinity')
);
CREATE INDEX repository_of_owner ON repository (forge, lower(owner)) WHERE tracked;
