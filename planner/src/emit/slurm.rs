//! Emits a Slurm batch script, which runs torchrun on each host with a rendezvous on the first.

use super::hosts::HostShape;
use super::{ConfigFile, ConfigFiles, head};
use crate::planning::plan::Plan;
use dtrain_protocol::DeviceKind;

/// Emits one script; the training program is left to the user.
pub(super) fn emit(plan: &Plan) -> ConfigFiles {
    let arrangement = &plan.best().candidate.arrangement;
    let (world, threads) = (arrangement.layout.world(), plan.best().candidate.threads);
    let HostShape { count, each } = HostShape::of(plan);
    let mut notes =
        vec!["the program, its arguments, the partition and the time are yours to set".to_owned()];
    if arrangement.device == DeviceKind::Cpu {
        notes.push("the plan was made for CPUs: no GPU is asked for".into());
    }
    if plan.is_estimated() {
        notes.push("the cores of the hosts are not known: one is asked for with each GPU".into());
    }
    let gpus = match arrangement.device {
        DeviceKind::Cpu => String::new(),
        DeviceKind::Cuda | DeviceKind::Wgpu => format!("#SBATCH --gpus-per-node={each}\n"),
    };
    let directives = format!(
        "#!/usr/bin/env bash\n#SBATCH --job-name={}\n#SBATCH --nodes={count}\n#SBATCH --ntasks-per-node=1\n{gpus}\
         #SBATCH --cpus-per-task={}\n#SBATCH --time=24:00:00\n#SBATCH --output=%x-%j.log\n#SBATCH --open-mode=append\n\
         #SBATCH --requeue\n",
        name(plan),
        each * threads
    );
    let what = "Slurm: sbatch slurm.sh; ranks a host times hosts must stay as many as the plan has";
    let text = directives + &head(plan, what, &notes) + &body(world, each, threads);
    ConfigFiles::of(vec![ConfigFile { name: "slurm.sh".into(), text }], notes, "sbatch slurm.sh")
}

fn body(world: u32, each: u32, threads: u32) -> String {
    format!(
        "set -euo pipefail\n\n# SET: your program with its arguments.\nPROGRAM=(train.py)\n\
         # Ranks on each host; times --nodes it must be {world}.\nRANKS={each}\n\n\
         if [ $((SLURM_JOB_NUM_NODES * RANKS)) -ne {world} ]; then\n    \
         echo \"ranks of the plan: {world}, of this job: $((SLURM_JOB_NUM_NODES * RANKS)); change --nodes or RANKS\" >&2\n    \
         exit 2\nfi\nFIRST=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\n\
         export OMP_NUM_THREADS={threads}\n\
         srun --kill-on-bad-exit=1 torchrun --nnodes \"$SLURM_JOB_NUM_NODES\" --nproc-per-node \"$RANKS\" \\\n    \
         --rdzv-id \"$SLURM_JOB_ID\" --rdzv-backend c10d --rdzv-endpoint \"$FIRST:29500\" --max-restarts 0 \\\n    \
         \"${{PROGRAM[@]}}\"\n"
    )
}

/// Returns the name of the recipe as lower-case letters, digits and `-`, beginning with a letter and at most
/// 52 long, so that Kubernetes can append a number within its limit of 63.
pub(super) fn name(plan: &Plan) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let text: String = plan.recipe.name.chars().map(keep).collect();
    let text = text.trim_matches('-');
    let is_fit = text.starts_with(|c: char| c.is_ascii_lowercase());
    let text = if is_fit { text.to_owned() } else { format!("train-{text}") };
    let short: String = text.chars().take(52).collect();
    short.trim_end_matches('-').to_owned()
}
