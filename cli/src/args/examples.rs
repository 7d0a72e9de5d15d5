//! Examples at the end of each command's help.

pub(super) const PLAN_EXAMPLE: &str = "Examples:
  dtrain plan recipe.toml --out plan.json && dtrain run plan.json
  dtrain plan examples/llama-405b/recipe.toml --on \"2048x8 H100-SXM-80GB\"
  dtrain plan recipe.toml --html plan.html
  dtrain plan recipe.toml --emit torchtitan --emit-to titan";

pub(super) const CHECK_EXAMPLE: &str = "Examples:
  dtrain check recipe.toml --set train.batch=64
  dtrain check recipe.toml --try output.txt
  python3 train.py 2>&1 | dtrain check recipe.toml --try -";

pub(super) const DATA_EXAMPLE: &str = "Examples:
  dtrain data recipe.toml --samples 3
  dtrain data recipe.toml --prepare

Without --prepare, text is read once and nothing is kept. Documents are text files or JSON lines;
duplicates are documents that are the same as one before, byte by byte.";

pub(super) const ESTIMATE_EXAMPLE: &str = "Example:
  dtrain estimate examples/published/rows.csv

The columns and what a blank cell means: docs/estimate.md. The formulas: docs/cost-model.md.";

pub(super) const HISTORY_EXAMPLE: &str = "Examples:
  dtrain history --where \"status=completed and batch>=32\" --by loss --limit 10
  dtrain history export --to shared/    and on another machine: dtrain history import shared/

A condition tests recipe, study, status or tag; batch, learning_rate, best, loss, step or
tokens_per_second; a key of the recipe or the plan; or a metric: of the objective the best value, of others the newest.";

pub(super) const EXPORT_EXAMPLE: &str = "Examples:
  dtrain export last --to tensorboard && tensorboard --logdir runs
  dtrain export --study tiny-tune-1 --to mlflow --out mlflow.db
  dtrain export tiny-1 tiny-2 --to parquet --keys \"loss,valid.*\" --out losses.parquet
  dtrain export last --to csv --out - | head
  dtrain export --to prometheus --listen 127.0.0.1:9400

Of what several ranks measure, the series of rank 0 has the name of its key, and that of rank 3 has
`/rank_3` behind it. Nothing is overwritten without --force: then the same trials are written anew,
and other runs in the same place stay. Formats in detail: docs/exporting.md.";

pub(super) const REPORT_EXAMPLE: &str = "\
Examples:
  dtrain report last
  dtrain report tiny-1 tiny-2 -o compared.html
  dtrain report --study tiny-tune-1

The file needs nothing else: it can be sent, or opened without a network. Its name is printed.";

pub(super) const TUNE_EXAMPLE: &str = "Examples:
  dtrain tune recipe.toml --trials 12 --out tuned.json && dtrain run tuned.json
  dtrain tune recipe.toml --study recipe-tune-1 --trials 20    resume a study

Each trial is a complete short training run with its own warm-up and decay. The learning rate is
searched within the plan's range unless the recipe sets `learning_rate = { log = [1e-4, 1e-2] }`;
batch, warm-up and precision are searched where it sets `{ choices = [..] }` or `{ log = [..] }`.
Ctrl-C saves and stops; the same command with --study resumes, with the same result.";

pub(super) const WATCH_EXAMPLE: &str = "Examples:
  dtrain watch
  dtrain watch last
  dtrain watch recipe-tune-1

Any number of terminals can watch; nothing is changed, and q leaves everything running. ? lists the keys.";

pub(super) const DRAIN_EXAMPLE: &str = "\
Examples:
  dtrain drain gpu-03
  dtrain drain gpu-03 --lift

Each running trial that uses the host saves a checkpoint and goes on with its other hosts.
The command waits until the host is free. No trial uses it until the drain is lifted.";

pub(super) const FENCE_EXAMPLE: &str = "\
Examples:
  dtrain fence last gpu-03
  dtrain fence last gpu-03 --lift

What the host runs of the trial is ended, at once or when it can be reached again, and no attempt is placed on it until
the fence is lifted. Without it, a host that cannot be reached is given up after `cluster.unreachable_timeout`.";

pub(super) const RM_EXAMPLE: &str = "Examples:
  dtrain rm tiny-1 tiny-2
  dtrain rm last --yes

Removes what the history knows of a trial, and its folder and checkpoints here and on its hosts.
Its number is not given again. A trial that began with one of its checkpoints keeps that.";

pub(super) const GC_EXAMPLE: &str = "Example:
  dtrain gc --dry-run

Removes checkpoints that were never completed, reports of completed trials that the history has
already, what an interrupted `dtrain rm` left, unused copies of other versions of dtrain, and
tokens of data that no trial uses. Keeps every trial and every checkpoint that can be used.";

pub(super) const HOSTS_EXAMPLE: &str = "Examples:
  dtrain hosts
  dtrain hosts forgive gpu-02

A host that fails twice within an hour by the same cause is left out for ten minutes, and each
time after that for twice as long, up to a day.";

pub(super) const RUN_EXAMPLE: &str = "Examples:
  dtrain run recipe.toml
  dtrain run recipe.toml --ranks 2 --set train.seed=7 --name seven
  dtrain run plan.json --detach

Ctrl-C finishes the step, saves a checkpoint and stops; a second Ctrl-C stops immediately.";

pub(super) const DOCTOR_EXAMPLE: &str = "Examples:
  dtrain doctor
  dtrain doctor train@gpu-01 gpu-02:2222
  dtrain doctor --device cuda --index 1
  dtrain doctor --device wgpu --output my-gpu.json
  dtrain doctor --device cuda --only products,attention
  dtrain doctor --device cuda --only steps --model gpt2 --precision bf16 --steps 20

With --device it trains small decoders on the device and on the host, compares losses and gradients,
and measures training, matrix products, attention, copies and memory: some minutes. Ends with 4 where
the device computes something else than the host.";
