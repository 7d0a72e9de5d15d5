//! Finds contradictions between the layout, the batch and the cluster.

use super::{Rules, sbatch};
use crate::check::parsed::ParsedValue;
use crate::cluster::LauncherKind;
use crate::keys::{KEYS, Kind, RANKS_OF_A_HOST};
use crate::problem::Problem;
use crate::workdir::Workdir;

impl Rules<'_> {
    pub(super) fn layout(&mut self) {
        if self.values.kind == Some(Kind::Command) {
            // A foreign program uses its ranks as it likes.
            return self.product();
        }
        for (axis, key) in [
            ("layout.tensor", "model.heads"),
            ("layout.tensor", "model.kv_heads"),
            ("layout.tensor", "model.ffn"),
            ("layout.tensor", "model.dense_ffn"),
            ("layout.tensor", "model.shared_ffn"),
        ] {
            if key != "model.kv_heads" || self.values.said(key).is_some() {
                self.divides(axis, key);
            }
        }
        self.sequence();
        self.pipeline();
        self.expert();
        let is_flat = self.values.kind.is_some() && !self.values.reads_tokens();
        if is_flat && self.values.whole("layout.context").is_some_and(|context| context > 1) {
            self.wrong(
                "`layout.context` splits sequences, but this model has none".to_owned(),
                &["layout.context", "model.kind"],
                "remove it",
            );
        }
        self.recompute();
        self.shards();
        self.shares();
        self.product();
        self.batch();
    }

    /// Checks that the expert-parallel degree divides the number of experts, and that a capacity limit is not
    /// combined with context parallelism.
    fn expert(&mut self) {
        let is_spread = self.values.whole("layout.expert").is_some_and(|expert| expert > 1);
        if self.values.whole("model.experts").is_some() {
            self.divides("layout.expert", "model.experts");
        } else if is_spread && !self.values.is_wrong("model.experts") {
            let hint = match self.values.kind {
                Some(Kind::Decoder) => "write for example `experts = 8` below `[model]`, or remove it",
                Some(Kind::Mlp | Kind::Cnn | Kind::Custom | Kind::Command) | None => "remove it",
            };
            let message = "`layout.expert` is above 1, but the model has no experts".to_owned();
            self.wrong(message, &["layout.expert"], hint);
        }
        let capacity = self.values.real("model.capacity");
        if capacity.is_some() && self.values.whole("layout.context").is_some_and(|context| context > 1) {
            self.wrong(
                "`model.capacity` counts the tokens of a whole sequence, which `layout.context` splits"
                    .to_owned(),
                &["layout.context", "model.capacity"],
                "remove one of them",
            );
        }
    }

    /// Checks that the product of the parallel degrees equals the number of ranks.
    fn product(&mut self) {
        let axes = ["layout.data", "layout.tensor", "layout.pipeline", "layout.context", "layout.expert"];
        let Some(ranks) = self.values.whole("cluster.ranks") else { return };
        let pinned: Vec<&str> = axes.into_iter().filter(|axis| self.values.whole(axis).is_some()).collect();
        let product = pinned.iter().filter_map(|axis| self.values.whole(axis)).fold(1, u64::saturating_mul);
        // With all five axes fixed the product must be equal; otherwise it must divide the ranks.
        let is_right =
            if pinned.len() == axes.len() { product == ranks } else { ranks.is_multiple_of(product) };
        if !is_right {
            let factors: Vec<String> = pinned
                .iter()
                .filter_map(|axis| {
                    Some(format!("{} {}", axis.trim_start_matches("layout."), self.values.whole(axis)?))
                })
                .collect();
            let message = format!(
                "the layout has {} = {product}, which does not fit {ranks} ranks",
                factors.join(" × ")
            );
            let mut keys = pinned;
            keys.push("cluster.ranks");
            self.wrong(message, &keys, "remove one of them and the planner chooses it");
        }
    }

    fn batch(&mut self) {
        let Some(batch) = self.values.whole("train.batch") else { return };
        if self.values.get("layout.shares").is_some_and(|shares| matches!(shares, ParsedValue::Wholes(_))) {
            return;
        }
        let data = self.values.whole("layout.data").unwrap_or(1);
        let micro = self.values.whole("layout.micro_batch").unwrap_or(1);
        let Some(unit) = data.checked_mul(micro).filter(|unit| !batch.is_multiple_of(*unit)) else { return };
        let message = format!(
            "`train.batch` = {batch} is not a multiple of data {data} × micro_batch {micro} = {unit}"
        );
        let near = batch.next_multiple_of(unit);
        self.wrong(
            message,
            &["train.batch", "layout.data", "layout.micro_batch"],
            &format!("the next that is: {near}"),
        );
    }

    pub(super) fn cluster(&mut self) {
        let launcher = self.values.one_of("cluster.launcher");
        if let (Some(LauncherKind::Local), Some(first)) = (launcher, self.hosts.first()) {
            let problem = Problem::new("the launcher \"local\" uses only this machine, but hosts are listed")
                .at(&first.origin);
            let problem = match self.values.said("cluster.launcher") {
                Some(origin) => problem.note_at("`cluster.launcher` is \"local\"", origin),
                None => problem.note("`cluster.launcher` is \"local\" by default"),
            };
            self.problems
                .push(problem.hint("write `launcher = \"ssh\"` below `[cluster]`, or remove the hosts"));
        }
        if launcher == Some(LauncherKind::Ssh)
            && self.hosts.is_empty()
            && !self.values.is_wrong("cluster.hosts")
        {
            self.wrong(
                "the launcher \"ssh\" needs hosts".to_owned(),
                &["cluster.launcher"],
                "write `[[cluster.hosts]]` and `address = \"…\"` below it",
            );
        }
        if launcher.is_some_and(|launcher| launcher != LauncherKind::Ssh)
            && self.values.said("cluster.transport").is_some()
        {
            self.wrong(
                "`cluster.transport` is for the launcher \"ssh\" only".to_owned(),
                &["cluster.transport"],
                "write `launcher = \"ssh\"` below `[cluster]`, or remove it",
            );
        }
        self.number_of_hosts(launcher);
        self.notice();
        self.workdir(launcher == Some(LauncherKind::Slurm));
        self.slurm(launcher == Some(LauncherKind::Slurm));
        self.ranks_of_a_host();
    }

    /// Checks that enough hosts remain beside the spares.
    fn number_of_hosts(&mut self, launcher: Option<LauncherKind>) {
        let listed = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
        let all = match launcher {
            Some(LauncherKind::Slurm) => self.values.count("cluster.slurm.nodes").unwrap_or(1),
            Some(LauncherKind::Ssh) if listed > 0 => listed,
            Some(LauncherKind::Local) => 1,
            Some(LauncherKind::Ssh) | None => return,
        };
        let spares = self.values.count("cluster.spares").unwrap_or(0);
        let least = self.values.count("cluster.least").unwrap_or(1);
        if spares.saturating_add(least) <= all {
            return;
        }
        let keys: Vec<&str> = ["cluster.least", "cluster.spares"]
            .into_iter()
            .filter(|key| self.values.said(key).is_some())
            .collect();
        let hosts = if all == 1 { "host" } else { "hosts" };
        self.wrong(
            format!(
                "{all} {hosts}, of which {spares} are spares, are fewer than the {least} that must train"
            ),
            &keys,
            "list more hosts, or ask for fewer",
        );
    }

    /// Checks the patterns of files that are not sent to hosts, and that some launcher sends the others.
    fn workdir(&mut self, is_slurm: bool) {
        for pattern in
            self.values.get("cluster.workdir.exclude").and_then(ParsedValue::texts).iter().flatten()
        {
            if let Err(detail) = Workdir::check_pattern(pattern) {
                self.wrong(
                    format!("`cluster.workdir.exclude`: {pattern:?} is not a pattern: {detail}"),
                    &["cluster.workdir.exclude"],
                    "write for example [\"*.ckpt\", \"runs/\", \"data/*.bin\"]",
                );
            }
        }
        if is_slurm && self.values.flag("cluster.workdir.send") == Some(true) {
            let keys = ["send", "exclude", "limit", "files"].map(|key| format!("cluster.workdir.{key}"));
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            self.wrong(
                "`cluster.workdir` is for the launcher \"ssh\": the nodes of a Slurm job share the recipe's folder"
                    .to_owned(),
                &keys,
                "remove it, and keep the recipe in a folder that every node sees",
            );
        }
    }

    /// Checks that no host gets more ranks than it can start.
    fn ranks_of_a_host(&mut self) {
        let Some(ranks) = self.values.whole("cluster.ranks") else { return };
        let nodes = self.values.whole("cluster.slurm.nodes").unwrap_or(1);
        let hosts = nodes.max(self.hosts.len() as u64);
        let most = RANKS_OF_A_HOST.saturating_mul(hosts);
        if ranks > most && !self.values.is_wrong("cluster.hosts") {
            let hosts = if hosts == 1 { "one host".to_owned() } else { format!("{hosts} hosts") };
            self.wrong(
                format!(
                    "`cluster.ranks` = {ranks} is more than {hosts} can start: at most {RANKS_OF_A_HOST} ranks on each"
                ),
                &["cluster.ranks"],
                &format!("name more hosts, or at most {most} ranks; for GPUs that are not here, `dtrain plan RECIPE --on \"HOSTSxGPUS PART\"`"),
            );
        }
    }

    fn slurm(&mut self, is_slurm: bool) {
        if let (true, Some(first)) = (is_slurm, self.hosts.first()) {
            let problem = Problem::new(
                "the launcher \"slurm\" chooses the hosts itself, but hosts are \
                                       listed",
            );
            self.problems.push(problem.at(&first.origin).hint(
                "remove them; `cluster.slurm.nodes` sets their number, and \
                          `cluster.slurm.options` can hold `--nodelist=…`",
            ));
        }
        let keys = KEYS.iter().map(|key| key.path).filter(|path| path.starts_with("cluster.slurm."));
        if let Some(said) = keys.into_iter().find(|path| !is_slurm && self.values.said(path).is_some()) {
            self.wrong(
                format!("`{said}` is for the launcher \"slurm\" only"),
                &[said],
                "write `launcher = \"slurm\"` below `[cluster]`, or remove it",
            );
        }
        let Some(ParsedValue::Texts(options)) = self.values.get("cluster.slurm.options") else { return };
        if let Some((odd, why)) = options.iter().find_map(|option| Some((option, sbatch::refused(option)?))) {
            let odd: String = odd.chars().take(60).collect();
            let hint =
                "write an option and its value as one text: [\"--gpus-per-node=8\", \"--constraint=a100\"]";
            self.wrong(format!("{odd:?} {why}"), &["cluster.slurm.options"], hint);
        }
    }
}
