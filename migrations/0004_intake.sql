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
