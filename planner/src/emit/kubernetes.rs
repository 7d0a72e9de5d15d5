//! Emits an indexed Kubernetes job, with the service through which its pods find the first pod.

use super::hosts::HostShape;
use super::slurm::name;
use super::{ConfigFile, ConfigFiles, head};
use crate::planning::plan::Plan;
use dtrain_protocol::DeviceKind;
use dtrain_recipes::Bytes;

/// Emits one manifest; image, program and storage are left to the user.
pub(super) fn emit(plan: &Plan) -> ConfigFiles {
    let candidate = &plan.best().candidate;
    let notes =
        vec!["the image, the program, its storage and the memory of a pod are yours to set".to_owned()];
    let what = "Kubernetes 1.29 or newer: kubectl apply -f kubernetes.yaml; completions, parallelism and --nnodes are the hosts";
    let (world, hosts) = (candidate.arrangement.layout.world(), HostShape::of(plan));
    let job = job(plan, world, hosts) + &limits(plan, hosts.each);
    let text = head(plan, what, &notes) + &service(plan) + "---\n" + &job;
    let file = ConfigFile { name: "kubernetes.yaml".into(), text: text + VOLUMES };
    ConfigFiles::of(vec![file], notes, "kubectl apply -f kubernetes.yaml")
}

fn service(plan: &Plan) -> String {
    let name = name(plan);
    format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  clusterIP: None\n  \
         publishNotReadyAddresses: true\n  selector:\n    batch.kubernetes.io/job-name: {name}\n  ports:\n    - name: rendezvous\n      port: 29500\n"
    )
}

fn job(plan: &Plan, world: u32, HostShape { count, each }: HostShape) -> String {
    let (name, threads) = (name(plan), plan.best().candidate.threads);
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: {name}\nspec:\n  completionMode: Indexed\n  \
         completions: {count}\n  parallelism: {count}\n  backoffLimit: 0\n  template:\n    spec:\n      \
         subdomain: {name}\n      restartPolicy: Never\n      containers:\n        - name: train\n          \
         image: pytorch/pytorch:latest # SET: an image with your program\n          command:\n            - torchrun\n            \
         - --nnodes={count}\n            - --nproc-per-node={each} # times --nnodes it must be {world}\n            \
         - --rdzv-id={name}\n            - --rdzv-backend=c10d\n            - --rdzv-endpoint={name}-0.{name}:29500\n            \
         - --max-restarts=0\n            - train.py # SET: your program with its arguments\n          \
         env:\n            - name: OMP_NUM_THREADS\n              value: \"{threads}\"\n"
    )
}

/// Returns the resource limits of a pod with `each` ranks: a GPU per rank, or the threads and memory of CPU
/// ranks in the plan.
fn limits(plan: &Plan, each: u32) -> String {
    let best = plan.best();
    match best.candidate.arrangement.device {
        DeviceKind::Cuda | DeviceKind::Wgpu => {
            format!("          resources:\n            limits:\n              nvidia.com/gpu: {each}\n")
        }
        DeviceKind::Cpu => {
            let memory = best.estimate.as_ref().map_or(String::new(), |estimate| {
                let all = mebibytes(estimate.memory_peak) * u64::from(each);
                format!("              memory: {all}Mi\n")
            });
            let cores = each * best.candidate.threads;
            format!("          resources:\n            requests:\n              cpu: {cores}\n{memory}")
        }
    }
}

fn mebibytes(bytes: Bytes) -> u64 {
    bytes.0.div_ceil(1 << 20)
}

/// Volume for shared memory, which NCCL and data loaders use; the default of 64 MiB is too small.
const VOLUMES: &str = "          volumeMounts:
            - name: shared-memory
              mountPath: /dev/shm
      volumes:
        - name: shared-memory
          emptyDir:
            medium: Memory
";
