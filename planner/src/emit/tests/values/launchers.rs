//! The batch script of Slurm and the manifest of Kubernetes, which start any program.

use super::super::readers::{add, flat, shell, yaml};
use super::*;

/// Returns the directives of a batch script, and its commands by their first words.
fn read_slurm(emitted: &ConfigFiles) -> Lines {
    let text = file(emitted, "slurm.sh");
    let directives: Vec<_> =
        text.lines().filter_map(|line| line.strip_prefix("#SBATCH ")).map(str::to_owned).collect();
    assert!(text.starts_with("#!/usr/bin/env bash\n#SBATCH "), "directives come first: {text}");
    let (mut found, mut commands) = (start(emitted), shell::commands(text));
    found.append(&mut shell::options(&directives));
    let last = commands.pop().expect("the script starts something");
    let program = last.iter().position(|word| word == "torchrun").expect("it starts torchrun");
    add(&mut found, "srun".into(), last[1..program].join(" "));
    found.append(&mut shell::options(&last[program..]));
    for mut command in commands {
        let name = command.remove(0);
        add(&mut found, name, command.join(" "));
    }
    found
}

/// Returns the values of the two objects, and the options of the command that a pod starts.
fn read_kubernetes(emitted: &ConfigFiles) -> Lines {
    let mut documents = yaml::documents(file(emitted, "kubernetes.yaml"));
    assert_eq!(documents.len(), 2, "a service and a job");
    let words =
        documents[1].pointer_mut("/spec/template/spec/containers/0/command").expect("a command").take();
    let words: Vec<String> = serde_json::from_value(words).expect("words are text");
    let mut found = start(emitted);
    let program = words.last().expect("the program");
    add(&mut found, "program".into(), program.clone());
    found.append(&mut shell::options(&words[..words.len() - 1]));
    found.append(&mut flat("service", &documents[0]));
    found.append(&mut flat("job", &documents[1]));
    found
}

const SLURM_NOTE: &str = "the program, its arguments, the partition and the time are yours to set";
const KUBERNETES_NOTE: &str = "the image, the program, its storage and the memory of a pod are yours to set";

/// Returns what all batch scripts have.
fn slurm(of: &SampleValues) -> String {
    let (each, ranks, threads) = (of.ranks_per_host(), of.ranks, of.plan.best().candidate.threads);
    format!(
        "files slurm.sh
        start sbatch slurm.sh
        --job-name tiny-llama
        --nodes {}
        --ntasks-per-node 1
        --cpus-per-task {}
        --time 24:00:00
        --output %x-%j.log
        --open-mode append
        --requeue
        set -euo pipefail
        if [ $((SLURM_JOB_NUM_NODES * RANKS)) -ne {ranks} ]
        then
        echo ranks of the plan: {ranks}, of this job: $((SLURM_JOB_NUM_NODES * RANKS)); change --nodes or RANKS >&2
        exit 2
        fi
        export OMP_NUM_THREADS={threads}
        srun --kill-on-bad-exit=1
        0 torchrun
        --nnodes $SLURM_JOB_NUM_NODES
        --nproc-per-node {each}
        --rdzv-id $SLURM_JOB_ID
        --rdzv-backend c10d
        --rdzv-endpoint $(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1):29500
        --max-restarts 0 train.py",
        of.hosts,
        each * threads
    )
}

/// Returns what all manifests have.
fn kubernetes(of: &SampleValues) -> String {
    let container = "job.spec.template.spec.containers.0";
    format!(
        "files kubernetes.yaml
        start kubectl apply -f kubernetes.yaml
        service.apiVersion v1
        service.kind Service
        service.metadata.name tiny-llama
        service.spec.clusterIP None
        service.spec.publishNotReadyAddresses true
        service.spec.selector.batch.kubernetes.io/job-name tiny-llama
        service.spec.ports.0.name rendezvous
        service.spec.ports.0.port 29500
        job.apiVersion batch/v1
        job.kind Job
        job.metadata.name tiny-llama
        job.spec.completionMode Indexed
        job.spec.completions {}
        job.spec.parallelism {}
        job.spec.backoffLimit 0
        job.spec.template.spec.subdomain tiny-llama
        job.spec.template.spec.restartPolicy Never
        job.spec.template.spec.volumes.0.name shared-memory
        job.spec.template.spec.volumes.0.emptyDir.medium Memory
        {container}.name train
        {container}.image pytorch/pytorch:latest
        {container}.command null
        {container}.env.0.name OMP_NUM_THREADS
        {container}.env.0.value \"{}\"
        {container}.volumeMounts.0.name shared-memory
        {container}.volumeMounts.0.mountPath /dev/shm
        program train.py
        0 torchrun
        --nnodes {}
        --nproc-per-node {}
        --rdzv-id tiny-llama
        --rdzv-backend c10d
        --rdzv-endpoint tiny-llama-0.tiny-llama:29500
        --max-restarts 0",
        of.hosts,
        of.hosts,
        of.plan.best().candidate.threads,
        of.hosts,
        of.ranks_per_host()
    )
}

/// Hosts and ranks of every plan: what a batch job and an indexed job differ in.
#[test]
fn launchers_are_given_the_hosts_and_ranks_of_each_plan() {
    const RESOURCES: &str = "job.spec.template.spec.containers.0.resources";
    let shapes: &[(&str, u32, u32)] = &[
        ("gpt", 1, 4),
        ("llama", 1, 8),
        ("pipeline", 1, 4),
        ("experts", 1, 4),
        ("hybrid", 1, 8),
        ("single", 1, 1),
        ("hosts", 2, 2),
        ("cut", 1, 8),
        ("gradients", 1, 4),
        ("whole", 1, 4),
        ("gathered", 1, 8),
        ("ends", 1, 8),
        ("folded", 1, 8),
        ("circular", 1, 4),
        ("mixture", 1, 32),
    ];
    assert_eq!(shapes.len(), plans().len());
    for (name, plan) in plans() {
        let of = SampleValues::of(&plan);
        let (_, hosts, each) = *shapes.iter().find(|row| row.0 == name).expect("each plan has a row");
        assert_eq!((of.hosts, of.ranks_per_host()), (hosts, each), "{name}");
        let (gpus, resources, notes): (_, _, &[_]) = if name == "single" {
            let peak =
                plan.best().estimate.as_ref().expect("it was estimated").memory_peak.0.div_ceil(1 << 20);
            let cpus = format!("{RESOURCES}.requests.cpu 1\n{RESOURCES}.requests.memory {peak}Mi");
            (String::new(), cpus, &[SLURM_NOTE, "the plan was made for CPUs: no GPU is asked for"])
        } else {
            let gpus = format!("{RESOURCES}.limits.nvidia.com/gpu {each}");
            (format!("\n--gpus-per-node {each}"), gpus, &[SLURM_NOTE])
        };
        accepts(ConfigFormat::Slurm, &plan, &(slurm(&of) + &gpus), (name, "", notes), read_slurm);
        let all = format!("{}\n{resources}", kubernetes(&of));
        accepts(ConfigFormat::Kubernetes, &plan, &all, (name, "", &[KUBERNETES_NOTE]), read_kubernetes);
    }
}
