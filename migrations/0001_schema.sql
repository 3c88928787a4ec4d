-- Every table of tireless and its named invariants. Rows are the truth; the forge shows a picture of them.
-- Text + CHECK instead of enums: a value can be dropped again. All times are the database's clock unless a column says forge time.

-- Of an amount: nothing is less than NaN and more than any cap, and what is below zero would be money to spend.
-- Domains, not checks of their tables: each statement on a table parses all of its checks, whatever it writes.
CREATE DOMAIN usd AS numeric CONSTRAINT usd_is_an_amount CHECK (VALUE >= 0 AND VALUE < 'Infinity');
-- How often something happened: there is always a next time. At its end it stays there: what could not be counted would not be
-- done either, and nothing of the lane with it.
CREATE DOMAIN tally AS int CONSTRAINT tally_counts_up CHECK (VALUE BETWEEN 0 AND 1000000000);
-- The first, the second, the third of something: there is always a next one.
CREATE DOMAIN ordinal AS bigint CONSTRAINT ordinal_has_a_next CHECK (VALUE BETWEEN -1000000000000000000 AND 1000000000000000000);
CREATE FUNCTION once_more(n int) RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT least(n, 999999999) + 1 $$;
CREATE FUNCTION next_after(n bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT least(n, 999999999999999999) + 1 $$;
-- A time that is compared for being the same, or that the forge is asked from: one that can be read as what it is.
CREATE DOMAIN moment AS timestamptz CONSTRAINT moment_has_a_year CHECK (VALUE BETWEEN '0002-01-01 00:00Z' AND '9998-12-31 00:00Z');
-- What an agent says it used. Sums are made of these three; the bound is the one under which they are read.
CREATE DOMAIN usage_said AS jsonb CONSTRAINT usage_is_counted CHECK (
  CASE jsonb_typeof(VALUE -> 'usd') WHEN 'number' THEN (VALUE ->> 'usd')::numeric BETWEEN 0 AND 9007199254740992
       ELSE VALUE ->> 'usd' IS NULL END
  AND CASE jsonb_typeof(VALUE -> 'input_tokens') WHEN 'number' THEN (VALUE ->> 'input_tokens')::numeric BETWEEN 0 AND 9007199254740992
           ELSE VALUE ->> 'input_tokens' IS NULL END
  AND CASE jsonb_typeof(VALUE -> 'output_tokens') WHEN 'number' THEN (VALUE ->> 'output_tokens')::numeric BETWEEN 0 AND 9007199254740992
           ELSE VALUE ->> 'output_tokens' IS NULL END);

-- One Gitea or Forgejo instance, by its configured name; what it last said of itself.
CREATE TABLE forge (
  name        text PRIMARY KEY,
  url         text NOT NULL,
  flavour     text,
  version     text,
  bot_id      bigint,
  bot_login   text,
  reached_at  timestamptz,
  error       text,
  error_at    timestamptz,
  unfound     jsonb NOT NULL DEFAULT '{}'                     -- configured 'owner/name' or 'owner/*' -> why it is not watched
);

-- A repository the bot watches, watched once, or was told to forget. Keyed by the forge's id: names change.
CREATE TABLE repository (
  id                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  forge             text NOT NULL REFERENCES forge (name),
  forge_repo_id     bigint NOT NULL,
  owner             text NOT NULL,
  name              text NOT NULL,
  owner_is_org      boolean,
  default_branch    text NOT NULL DEFAULT '',
  clone_url         text NOT NULL DEFAULT '',
  html_url          text NOT NULL DEFAULT '',
  source            text NOT NULL DEFAULT 'config',          -- who tracks it: the configuration, or `repos add`
  tracked           boolean NOT NULL DEFAULT true,
  readable          boolean NOT NULL DEFAULT true,           -- false: its pending jobs wait, cannot_tell
  unreadable_reason text,
  asks_after        timestamptz,                             -- forge time: label adds before it never ask (tracked without opt-in)
  max_running       int,                                     -- limits are off when null
  max_runs_per_day  int,
  limits_by         text,                                    -- who set them: the configuration, or `repos limit`
  -- the poll: cursor, take, backoff
  since             moment,                                  -- forge time; null: scan everything
  newest_seen       moment,                                  -- forge time: greatest updated_at stored
  newest_first_seen_at moment,                               -- when that stamp was first met, our clock
  poll_not_before   timestamptz NOT NULL DEFAULT '-infinity',
  polled_at         timestamptz,                             -- when the last poll that saw all there was to see was begun
  full_scan_at      timestamptz,
  doubted_at        timestamptz,                             -- something says it is not what it was: its next poll asks first
  searched          boolean NOT NULL DEFAULT false,          -- its changes are seen by the search for its owner's issues
  search_fault      text,                                    -- why they are not, where they could be
  judged_by         text,                                    -- hash of the rules under which all of it was judged last
  poll_failures     tally NOT NULL DEFAULT 0,
  poll_error        text,
  take_token        uuid,
  take_by           text,
  take_until        timestamptz,
  created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT repository_once UNIQUE (forge, forge_repo_id),
  CONSTRAINT repository_source_known CHECK (source IN ('config', 'operator')),
  CONSTRAINT unreadable_has_a_reason CHECK (readable OR unreadable_reason IS NOT NULL),
  CONSTRAINT repository_limits_by_known CHECK (limits_by IN ('config', 'operator')),
  CONSTRAINT repository_limits_positive CHECK (max_running > 0 AND max_runs_per_day > 0),
  CONSTRAINT repository_take_is_whole_and_ends CHECK (num_nonnulls(take_token, take_by, take_until) IN (0, 3) AND take_until < 'infinity')
);
-- A name may come back for another repository after a rename, but only one of them is watched under it.
CREATE UNIQUE INDEX repository_name_tracked ON repository (forge, lower(owner), lower(name)) WHERE tracked;
-- The poller's next repository.
CREATE INDEX repository_due ON repository (poll_not_before) WHERE tracked;

-- An agent lane. Configured by `serve` alone; gone from the configuration it stays, closed.
CREATE TABLE lane (
  name              text PRIMARY KEY,
  position          int NOT NULL,
  kinds             text[] NOT NULL DEFAULT '{}',
  is_default        boolean NOT NULL DEFAULT false,
  children_of_plan  text REFERENCES lane (name) DEFERRABLE INITIALLY DEFERRED,
  configured        boolean NOT NULL DEFAULT true,
  lease_s           double precision NOT NULL DEFAULT 600,
  max_attempts      tally NOT NULL DEFAULT 3,
  backoff_base_s    double precision NOT NULL DEFAULT 30,
  backoff_cap_s     double precision NOT NULL DEFAULT 1800,
  run_timeout_s     double precision NOT NULL DEFAULT 5400,
  stall_timeout_s   double precision NOT NULL DEFAULT 600,
  max_running       int,
  max_usd           usd,                                     -- what one job may cost until a person acts on it; null: no cap
  reserve_usd       usd NOT NULL DEFAULT 0,                  -- with less left of that no further attempt is started
  repository_limits boolean NOT NULL DEFAULT false,          -- some repository it may serve has a limit
  -- after a quota or breaker hold one claim goes first: the probe
  probing           boolean NOT NULL DEFAULT false,
  probe_token       uuid,                                    -- the claim that probes; null: not taken yet
  probe_avoid_job   bigint,                                  -- the job that caused the hold, if there is another
  probe_since       timestamptz,
  counted           boolean GENERATED ALWAYS AS (max_running IS NOT NULL OR repository_limits OR probing) STORED,
  CONSTRAINT lane_kinds_known CHECK (kinds <@ ARRAY['discover', 'plan', 'implement']),
  CONSTRAINT lane_name_plain CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,39}$'),
  CONSTRAINT lane_times_positive CHECK (lease_s > 0 AND run_timeout_s > 0 AND stall_timeout_s > 0
                                        AND backoff_base_s >= 0 AND backoff_cap_s >= backoff_base_s),
  -- Ten years, as the configuration has it. NaN is greater than any number, and would fail each claim of the lane.
  CONSTRAINT lane_times_bounded CHECK (greatest(lease_s, run_timeout_s, stall_timeout_s, backoff_cap_s) <= 315360000),
  CONSTRAINT lane_counts_positive CHECK (max_attempts > 0 AND max_running > 0 AND max_usd > 0 AND reserve_usd >= 0),
  CONSTRAINT probe_only_while_probing CHECK (probing OR probe_token IS NULL),
  -- Asked at the commit: the configuration is written lane by lane.
  CONSTRAINT one_default_lane EXCLUDE (is_default WITH =) WHERE (is_default AND configured) DEFERRABLE INITIALLY DEFERRED
);

-- A lane is open when it has no row here (for any host, or for the claimer's). Each source changes only its own rows.
CREATE TABLE lane_hold (
  lane       text NOT NULL REFERENCES lane (name),
  source     text NOT NULL,
  host       text NOT NULL DEFAULT '',                       -- '': every host
  until      timestamptz,                                    -- null: until released; the sweeper removes what is due
  reason     text NOT NULL,
  held_by    text NOT NULL,
  job_id     bigint,                                         -- the job that caused it (quota, breaker)
  began_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  grown      tally NOT NULL DEFAULT 0,                       -- how often it was lengthened: doubling
  PRIMARY KEY (lane, source, host),
  CONSTRAINT hold_source_known CHECK (source IN ('operator', 'quota', 'breaker', 'setup')),
  CONSTRAINT hold_setup_names_a_host CHECK ((source = 'setup') = (host <> ''))
);

-- The breaker's count, apart from the lane row: touched by a failure, or by a success while it is not 0.
CREATE TABLE lane_breaker (
  lane      text PRIMARY KEY REFERENCES lane (name),
  failures  tally NOT NULL DEFAULT 0,
  issues    bigint[] NOT NULL DEFAULT '{}',
  opened    tally NOT NULL DEFAULT 0,                        -- openings in a row: 15 min doubling
  last_ended_at timestamptz,                                 -- a hold grows only on an attempt claimed after this
  quotas    tally NOT NULL DEFAULT 0,                        -- quota holds in a row, doubling where no time was named
  quota_ended_at timestamptz
);

-- A success that found the breaker's row locked: whoever counts next starts from none. No key: it would lock the lane's row.
CREATE TABLE lane_success (lane text NOT NULL);
CREATE INDEX lane_success_lane ON lane_success (lane);

-- The last snapshot seen of a forge issue, what was approved of it, and how far its asking has been answered.
CREATE TABLE issue (
  id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  repository_id  bigint NOT NULL REFERENCES repository (id),
  number         int NOT NULL,
  forge_issue_id bigint NOT NULL,
  title          text NOT NULL,
  body           text NOT NULL,                              -- the first MiB; content_hash covers all of it
  content_hash   text NOT NULL,
  author_id      bigint NOT NULL,
  author_login   text NOT NULL,
  open           boolean NOT NULL,
  labels         jsonb NOT NULL DEFAULT '[]',                -- a picture; no claim reads it
  url            text NOT NULL,
  created_at     timestamptz NOT NULL,                       -- forge time
  updated_at     timestamptz NOT NULL,                       -- forge time
  asked_at       timestamptz NOT NULL,                       -- when the read that is stored here was sent
  seen_at        moment NOT NULL DEFAULT clock_timestamp(),  -- when its answer was stored
  settled        boolean NOT NULL DEFAULT false,             -- read well after updated_at: the same stamp means the same issue
  gone_since     timestamptz,                                -- first of the two 404s that make "gone"
  -- the approved text: what an agent works from
  approved_hash  text,
  approved_title text,
  approved_body  text,
  approved_by    text,
  approved_at    timestamptz,
  -- the answered marks, over every asking entry seen; never pruned
  answered_event bigint NOT NULL DEFAULT 0,
  answered_time  timestamptz NOT NULL DEFAULT '-infinity',   -- forge time
  counted        jsonb NOT NULL DEFAULT '{}',                -- label id -> role: opt-in and modes that counted when last judged
  -- what triage last said
  asked          boolean NOT NULL DEFAULT false,             -- a proper request is on it
  triage_code    text,                                       -- why it made no job, or a warning; null: nothing to say
  triage_details jsonb NOT NULL DEFAULT '{}',
  triaged_at     timestamptz NOT NULL DEFAULT clock_timestamp(),  -- when triage first said so
  -- plans
  children_done  tally NOT NULL DEFAULT 0,
  CONSTRAINT issue_once UNIQUE (repository_id, number),
  CONSTRAINT issue_number_positive CHECK (number > 0),
  CONSTRAINT labels_are_a_list CHECK (jsonb_typeof(labels) = 'array'),
  CONSTRAINT labels_have_ids_and_names CHECK (
    labels = jsonb_path_query_array(labels, '$[*] ? (@.id.type() == "number" && @.name.type() == "string")')),
  CONSTRAINT details_have_names CHECK (jsonb_typeof(triage_details) = 'object'),
  CONSTRAINT counted_are_roles_of_labels CHECK (CASE jsonb_typeof(counted) WHEN 'object' THEN
    NOT jsonb_path_exists(counted, '$.keyvalue() ? (!(@.key like_regex "^[0-9]{1,19}$") || @.value.type() != "string"
      || !(@.value like_regex "^(opt_in|kind|agent|hold|priority|status|unknown)$"))') ELSE false END),
  CONSTRAINT approved_text_is_whole CHECK (num_nonnulls(approved_hash, approved_title, approved_body, approved_by, approved_at) IN (0, 5)),
  CONSTRAINT body_bounded CHECK (octet_length(body) <= 1048576 AND octet_length(approved_body) <= 1048576)
);

-- Yes or no, once per timeline entry; "cannot tell" is never stored.
CREATE TABLE verdict (
  issue_id    bigint NOT NULL REFERENCES issue (id),
  event_id    bigint NOT NULL,
  allowed     boolean NOT NULL,
  reason      text NOT NULL,
  actor_id    bigint NOT NULL,
  actor_login text NOT NULL,
  entry_at    timestamptz NOT NULL,                          -- forge time; a forge restored from a backup gives ids away again
  judged_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (issue_id, event_id)
);

-- One act asking for work. A job answers exactly one.
CREATE TABLE request (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  issue_id     bigint NOT NULL REFERENCES issue (id),
  source       text NOT NULL,
  event_id     bigint,                                       -- the timeline entry, for source label
  asked_time   timestamptz NOT NULL,                         -- forge time for label, ours otherwise
  actor_id     bigint,
  actor_login  text NOT NULL,
  content_hash text NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  answered_at  timestamptz,                                  -- source child: when its one job was made; jobs are pruned
  CONSTRAINT request_source_known CHECK (source IN ('label', 'operator', 'child')),
  CONSTRAINT label_request_names_its_event CHECK ((source = 'label') = (event_id IS NOT NULL))
);
-- The time too: a forge restored from a backup gives ids away again.
CREATE UNIQUE INDEX request_event_once ON request (issue_id, event_id, asked_time) WHERE source = 'label';
CREATE UNIQUE INDEX request_child_once ON request (issue_id) WHERE source = 'child';

-- A request to be worked on, of one kind. (state, reason) of pending and waiting rows are computed: see 0002.
-- Lists in the checks of job and attempt are arrays: each statement parses every check anew, and an array is stored
-- shorter than what IN becomes.
CREATE TABLE job (
  id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  issue_id         bigint NOT NULL REFERENCES issue (id),
  repository_id    bigint NOT NULL REFERENCES repository (id),
  request_id       bigint NOT NULL REFERENCES request (id),
  turn             ordinal NOT NULL DEFAULT 0,
  claim_no         ordinal NOT NULL DEFAULT 0,
  created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  pending_at       timestamptz,                              -- when it last came to wait for its turn; null: never yet
  -- claim: these columns are in no index but those of claimed jobs, so that renewals stay HOT
  claimed_at       timestamptz,
  claim_expires_at timestamptz,
  not_before       timestamptz,
  -- the publisher's take; makes no attempt, its expiry changes no state
  publish_until    timestamptz,
  publish_not_before timestamptz,
  publish_began_at timestamptz,                              -- first create sent: from here on no cancel
  finished_at      timestamptz,
  claim_token      uuid,
  publish_token    uuid,
  result_attempt   bigint,                                   -- the attempt whose recorded result is delivered
  rerun_of         bigint REFERENCES job (id) ON DELETE SET NULL,
  priority         smallint NOT NULL DEFAULT 0,              -- 1 high, 0, -1 low
  claim_place      int,                                      -- its place among what runs in a lane with a limit
  attempts         tally NOT NULL DEFAULT 0,
  max_attempts     tally NOT NULL DEFAULT 3,
  given_back       tally NOT NULL DEFAULT 0,                 -- in a row, by one of these:
  given_back_by    text,                                     -- 'agent' (quota, blocked) or 'repository' (nobody can work on it)
  spent_usd        usd NOT NULL DEFAULT 0,                   -- what its attempts have cost since a person last acted on it
  fresh_from       ordinal NOT NULL DEFAULT 0,               -- claim_no when a person last acted: earlier attempts say nothing any more
  pull_request     int,
  kind             text NOT NULL,
  lane             text NOT NULL REFERENCES lane (name),
  state            text NOT NULL DEFAULT 'pending',
  reason           text,
  -- why it waits: several can hold at once
  parked           text,
  question         text,                                     -- what the agent asked, or what is wanted of a person
  parked_at        timestamptz,
  hold             boolean NOT NULL DEFAULT false,
  waits_for        text[] NOT NULL DEFAULT '{}',             -- 'owner/repo#n' still open
  repository_full  boolean NOT NULL DEFAULT false,
  day_limit        boolean NOT NULL DEFAULT false,
  not_before_reason text,
  cancel_requested text,                                     -- the reason code it will end with
  claimed_by       text,
  claimed_host     text,
  publish_by       text,
  publish_reason   text,                                     -- why publishing does not go on
  publish_failures tally NOT NULL DEFAULT 0,                 -- in a row, for the backoff
  steered          text[] NOT NULL DEFAULT '{}',             -- 'lane', 'priority': an operator's choice stands
  summary          text,
  CONSTRAINT state_known CHECK (state = ANY ('{pending, waiting, claimed, publishing, delivered, failed, cancelled}')),
  CONSTRAINT kind_known CHECK (kind = ANY ('{discover, plan, implement}')),
  CONSTRAINT priority_known CHECK (priority BETWEEN -1 AND 1),
  CONSTRAINT claimed_has_a_claim_that_ends CHECK (state <> 'claimed' OR num_nonnulls(claimed_by, claimed_host, claim_token, claim_expires_at, claimed_at) = 5
                                        AND claim_expires_at < 'infinity'),
  CONSTRAINT only_claimed_has_a_claim CHECK (state = 'claimed' OR num_nonnulls(claimed_by, claimed_host, claim_token, claim_expires_at, claimed_at, claim_place) = 0),
  CONSTRAINT publish_take_only_in_publishing CHECK (state = 'publishing' OR num_nonnulls(publish_by, publish_token, publish_until) = 0),
  CONSTRAINT publish_take_is_whole_and_ends CHECK (num_nonnulls(publish_by, publish_token, publish_until) IN (0, 3) AND publish_until < 'infinity'),
  CONSTRAINT publishing_has_a_result CHECK (state <> 'publishing' OR result_attempt IS NOT NULL),
  CONSTRAINT terminal_is_finished CHECK ((state = ANY ('{delivered, failed, cancelled}')) = (finished_at IS NOT NULL)),
  CONSTRAINT waiting_has_a_reason CHECK (state <> 'waiting' OR reason IS NOT NULL),
  CONSTRAINT pending_has_no_wait CHECK (state <> 'pending' OR (parked IS NULL AND NOT hold AND waits_for = '{}' AND NOT repository_full
                                        AND NOT day_limit AND not_before IS NULL AND reason IS NULL)),
  CONSTRAINT parked_known CHECK (parked = ANY ('{needs_input, needs_approval, suspect, no_progress, budget_exhausted, asked_too_often}')),
  CONSTRAINT not_before_has_a_reason_and_an_end CHECK ((not_before IS NULL) = (not_before_reason IS NULL)
                                        AND not_before < 'infinity' AND publish_not_before < 'infinity'),
  CONSTRAINT not_before_reason_known CHECK (not_before_reason = ANY ('{backoff, blocked}')),
  CONSTRAINT cancelled_has_a_reason CHECK (state <> ALL ('{cancelled, failed}') OR reason IS NOT NULL),
  CONSTRAINT cancel_asked_only_while_claimed CHECK (cancel_requested IS NULL OR state = 'claimed'),
  CONSTRAINT attempts_within_max CHECK (attempts BETWEEN 0 AND max_attempts AND claim_no >= attempts),
  CONSTRAINT pending_has_attempts_left CHECK (state <> 'pending' OR attempts < max_attempts)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000);
-- The claim's walk, in the claim's order.
CREATE INDEX job_pending ON job (lane, priority DESC, turn, id) WHERE state = 'pending';
-- next_turn(): the last turn of a repository within (lane, priority).
CREATE INDEX job_pending_repository ON job (repository_id, lane, priority, turn) WHERE state = 'pending';
-- What time wakes.
CREATE INDEX job_due ON job (not_before, id) WHERE state = 'waiting' AND not_before IS NOT NULL;
-- What an event wakes: by repository (full, untracked, unreadable), few rows.
CREATE INDEX job_waiting ON job (repository_id, lane) WHERE state = 'waiting';
-- A lane's limit: no place of it is taken twice. Also counts running work; immutable while claimed, so renewals stay HOT.
CREATE UNIQUE INDEX one_claim_per_place ON job (lane, claim_place) INCLUDE (repository_id) WHERE state = 'claimed';
-- The sweep's order. Its predicate says a thing twice, so that who counts a lane never walks all that runs by it: while
-- little runs the planner thinks both alike.
CREATE INDEX job_claimed_order ON job (id) WHERE state = 'claimed' AND claim_token IS NOT NULL;
CREATE INDEX job_publishing ON job (id) WHERE state = 'publishing';
-- Retention, "last N finished".
CREATE INDEX job_finished ON job (finished_at, id) WHERE finished_at IS NOT NULL;
-- Invariant 1: at most one live job per issue, one job per (request, kind).
CREATE UNIQUE INDEX one_live_job_per_issue ON job (issue_id) WHERE state IN ('pending', 'waiting', 'claimed', 'publishing');
CREATE UNIQUE INDEX one_job_per_request_and_kind ON job (request_id, kind);
CREATE INDEX job_of_issue ON job (issue_id, id);

-- One row per claim, numbered by claim_no.
CREATE TABLE attempt (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  job_id       bigint NOT NULL REFERENCES job (id) ON DELETE CASCADE,
  repository_id bigint NOT NULL,                             -- the job's, to count a day's runs; no key: a claim would lock its row
  claim_no     bigint NOT NULL,
  uid          uuid NOT NULL DEFAULT gen_random_uuid(),
  token        uuid NOT NULL,
  number       int NOT NULL,                                 -- job.attempts as of this claim
  lane         text NOT NULL,
  runner       text NOT NULL,
  host         text NOT NULL,
  claimed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  ended_at     timestamptz,
  outcome      text,
  burned       boolean,
  reason       text,
  summary      text,
  exit_code    int,
  base_sha     text,
  usage        usage_said,                                   -- noted while it runs, told when it ends
  head         text,                                         -- the git tree it left, where it may be tried again: is there anything new?
  output_head  text,
  output_tail  text,
  -- record_result: what is to be delivered; a later record replaces it whole
  recorded_at  timestamptz,
  result       jsonb,                                        -- the agent's result, redacted
  commit_sha   text,                                         -- null: there was nothing to push
  branch       text,                                         -- the ref of its own this attempt may create
  pushed_at    timestamptz,
  pr_title     text,
  pr_body      text,
  pr_draft     boolean,
  pr_sent_at   timestamptz,                                  -- a create was sent: look before sending another
  branch_done_at timestamptz,                                -- after the job's end: deleted, or seen to be worth keeping
  CONSTRAINT attempt_once UNIQUE (job_id, claim_no),
  CONSTRAINT attempt_uid_once UNIQUE (uid),
  CONSTRAINT attempt_outcome_known CHECK (outcome = ANY ('{done, no_change, needs_input, blocked, quota, retry, failed,
    agent_error, no_evidence, protocol_error, timeout, stalled, over_budget, workspace_error, shutdown, cancelled, lease_lost}')),
  CONSTRAINT attempt_ends_with_an_outcome CHECK ((ended_at IS NULL) = (outcome IS NULL) AND (ended_at IS NULL) = (burned IS NULL)),
  CONSTRAINT commit_has_a_branch CHECK ((commit_sha IS NULL) = (branch IS NULL)),
  CONSTRAINT only_recorded_has_a_commit CHECK (recorded_at IS NOT NULL OR commit_sha IS NULL),
  CONSTRAINT output_bounded CHECK (octet_length(output_head) <= 65536 AND octet_length(output_tail) <= 65536)
) WITH (fillfactor = 90);
-- Branches still to be looked after, a few at any time.
CREATE INDEX attempt_branch ON attempt (id) WHERE branch IS NOT NULL AND branch_done_at IS NULL;
ALTER TABLE job ADD CONSTRAINT job_result_attempt FOREIGN KEY (result_attempt) REFERENCES attempt (id) ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED;

-- Live output, in bounded chunks, kept to the last MiB while the attempt runs.
CREATE TABLE output_chunk (
  attempt_id bigint NOT NULL REFERENCES attempt (id) ON DELETE CASCADE,
  seq        int NOT NULL,
  at         timestamptz NOT NULL DEFAULT clock_timestamp(),
  text       text NOT NULL,
  PRIMARY KEY (attempt_id, seq),
  CONSTRAINT chunk_bounded CHECK (octet_length(text) <= 65536)
);

-- A plan's child, or a discovery's proposal. Outlives jobs; unique on (plan issue, key) among those not ended.
CREATE TABLE child (
  id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  uid           uuid NOT NULL DEFAULT gen_random_uuid(),     -- in the created issue's hidden line
  plan_issue_id bigint NOT NULL REFERENCES issue (id),
  job_id        bigint REFERENCES job (id) ON DELETE SET NULL,
  attempt_id    bigint REFERENCES attempt (id) ON DELETE SET NULL,
  key           text NOT NULL,
  position      int NOT NULL,
  proposal      boolean NOT NULL DEFAULT false,
  title         text NOT NULL,
  body          text NOT NULL,
  kind          text NOT NULL,
  lane          text,
  depends_on    text[] NOT NULL DEFAULT '{}',                -- keys of the same plan
  sent_at       timestamptz,                                 -- a create was sent: look before sending another
  number        int,                                         -- the created issue's
  issue_id      bigint REFERENCES issue (id),
  linked_at     timestamptz,                                 -- its forge dependencies are in place (or cannot be)
  created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  ended_at      timestamptz,
  ended_reason  text,
  CONSTRAINT child_kind_known CHECK (kind IN ('discover', 'plan', 'implement')),
  CONSTRAINT child_key_plain CHECK (key ~ '^[a-z0-9][a-z0-9-]{0,63}$'),
  CONSTRAINT child_ends_with_a_reason CHECK ((ended_at IS NULL) = (ended_reason IS NULL)),
  CONSTRAINT child_is_not_its_plan CHECK (issue_id <> plan_issue_id),
  CONSTRAINT child_uid_once UNIQUE (uid)
);
CREATE UNIQUE INDEX one_live_child_per_key ON child (plan_issue_id, key) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX one_child_per_issue ON child (issue_id) WHERE issue_id IS NOT NULL;
CREATE INDEX child_of_job ON child (job_id);
-- A plan's children are asked for with each picture of it, ended or not; the table is never pruned.
CREATE INDEX child_of_plan ON child (plan_issue_id);

-- What happened to a job: one row per transition, written in its transaction. Free text never holds issue bodies.
CREATE TABLE job_event (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  job_id     bigint NOT NULL REFERENCES job (id) ON DELETE CASCADE,
  at         timestamptz NOT NULL DEFAULT clock_timestamp(),
  who        text NOT NULL,                                  -- 'runner NAME', 'sweeper', 'intake', 'operator NAME', 'publisher'
  what       text NOT NULL,                                  -- the transition's name
  from_state text,
  to_state   text NOT NULL,
  reason     text,
  details    jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX job_event_of_job ON job_event (job_id, id);

-- What people who count answered to a job's question: handed to its next agent. The first 64 KiB of a comment.
CREATE TABLE answer (
  job_id     bigint NOT NULL REFERENCES job (id) ON DELETE CASCADE,
  comment_id bigint NOT NULL,
  login      text NOT NULL,
  at         timestamptz NOT NULL,                           -- forge time
  text       text NOT NULL,
  PRIMARY KEY (job_id, comment_id),
  CONSTRAINT answer_bounded CHECK (octet_length(text) <= 65536)
);

-- "Judge this issue again", also for issues not stored yet. Deleted only if written before the read that answered it was sent.
CREATE TABLE look (
  repository_id bigint NOT NULL REFERENCES repository (id),
  number        int NOT NULL,
  written_at    moment NOT NULL DEFAULT clock_timestamp(),
  not_before    timestamptz NOT NULL DEFAULT '-infinity',
  why           text NOT NULL,
  failures      tally NOT NULL DEFAULT 0,
  error         text,
  take_token    uuid,
  take_until    timestamptz,
  PRIMARY KEY (repository_id, number),
  CONSTRAINT look_take_is_whole_and_ends CHECK ((take_token IS NULL) = (take_until IS NULL) AND take_until < 'infinity')
);
CREATE INDEX look_due ON look (not_before);

-- What the forge was told of an issue. Due when `changed` is ahead of `told`.
CREATE TABLE mirror (
  issue_id        bigint PRIMARY KEY REFERENCES issue (id),
  changed         ordinal NOT NULL DEFAULT 1,
  told            ordinal NOT NULL DEFAULT 0,
  told_status     text,                                      -- status label suffix on the forge by our last write; null: none
  told_comment    text,                                      -- hash of the comment's text; null: none
  told_at         timestamptz,
  comment_id      bigint,
  comment_sent_at timestamptz,                               -- a create was sent: look before sending another
  comment_at      timestamptz,                               -- its last create or edit was sent
  creates         tally NOT NULL DEFAULT 0,                  -- of the comment, within an hour
  creates_since   timestamptz,
  told_gate       text,                                      -- lane_mark() of the lane the pending job was told in
  -- a comment put off, not to be written too often: until then only a further change is looked at
  paced           ordinal NOT NULL DEFAULT 0,                -- the value of `changed` it was put off at
  paced_until     timestamptz NOT NULL DEFAULT '-infinity',
  not_before      timestamptz NOT NULL DEFAULT '-infinity',
  failures        tally NOT NULL DEFAULT 0,
  error           text,
  repairs         tally NOT NULL DEFAULT 0,
  repairs_since   timestamptz,
  contested       boolean NOT NULL DEFAULT false,
  take_token      uuid,
  take_by         text,
  take_until      timestamptz,
  CONSTRAINT mirror_take_is_whole_and_ends CHECK (num_nonnulls(take_token, take_by, take_until) IN (0, 3) AND take_until < 'infinity')
);
CREATE INDEX mirror_due ON mirror (not_before, issue_id) WHERE changed > told;
-- Fought over and left alone: few, tried again after an hour.
CREATE INDEX mirror_contested ON mirror (told_at) WHERE contested;

-- Runner processes that showed themselves; for people only, no claim depends on it.
CREATE TABLE runner (
  uid        uuid PRIMARY KEY,
  name       text NOT NULL,
  host       text NOT NULL,
  pid        int NOT NULL,
  lanes      text[] NOT NULL,
  slots      int NOT NULL,
  version    text NOT NULL,
  started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  seen_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX runner_seen ON runner (seen_at);
