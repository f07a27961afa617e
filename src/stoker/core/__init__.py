"""Pure decisions: from observations to actions. Imports `model` alone, and nothing that acts.

One decision of the governor:

| module | content |
|---|---|
| `decide` | the entry: for each job, the steps below in their order |
| `snapshot`, `job_decision` | what was observed and what is planned; the state of one job's decision |
| `maintain_claim` | what a running attempt needs: its launch, its gang, silent ranks, health rules |
| `next_claim` | claim the next machines, or say why the job waits or ends |
| `approval_entries` | approvals and their withdrawals, in the job's log |
| `end_machines`, `unowned_machines`, `ended_jobs` | terminate machines of an attempt, and machines that none owns |
| `gate` | whether a node may train |
| `governor_settings`, `heartbeat_timeout`, `limits` | numbers with their reasons; silence; bounds on time and money |
| `longest_life` | how long a machine may live without any governor |

How attempts end:

| module | content |
|---|---|
| `attempt_evidence`, `attempt_verdict` | what is known of a finished attempt, and the verdict on it |
| `failure_patterns`, `failure_diagnosis` | lines of logs that show a failure, and whose fault it is |
| `saved_work`, `poisoned_checkpoints`, `hold` | what is saved; what is not restored; machines kept for people |

Where to run, and what it costs:

| module | content |
|---|---|
| `acceptable_offerings`, `placement`, `place_capacity` | choose the offering of the next attempt |
| `unpriced_offerings` | which machines without a known price are left out |
| `reserved_time` | when a reservation has machines, and the notice before its end |
| `market`, `launch_history`, `spot` | reclaims and missing capacity so far; when on-demand is taken instead |
| `costs`, `daily_costs`, `prior_usage` | what a job has cost |
| `budget_state`, `budget_reservations`, `budget_verdict` | what is spent, what is reserved, and whether a launch fits |
| `budget_text`, `tag_groups` | sentences about budgets; the groups of jobs that share one |
| `concurrency` | machines that jobs have at the same time, and their limits |

Rules of the policy, and the rest:

| module | content |
|---|---|
| `policy_rules`, `audit` | rules that a job breaks; what audited rules would have done |
| `rule_checks`, `policy_patterns` | the problems of a job with one rule; the pattern language |
| `policy_defaults` | what the policy fills in |
| `health_rules`, `stalls`, `metric_rules` | stalled, idle or hopeless trainings |
| `summary`, `job_warnings` | one job as `ps`, `show` and `compare` read it, and what to look at |
| `node_names` | what the nodes of a gang are called |
| `safe_regex`, `name_list` | patterns in bounded time; lists in messages |
"""
