//! The environment variables that each framework expects from its launcher.

use super::Rendezvous;
use crate::descendants::rank_markers;
use dtrain_protocol::AttemptId;
use dtrain_recipes::Framework;
use serde_json::json;
use std::process::Command;

/// The place of a rank in the attempt, from which its environment variables follow.
pub(super) struct RankEnv<'a> {
    pub(super) rank: u32,
    pub(super) world: u32,
    /// Index of the rank among the ranks of its host.
    pub(super) local_rank: u32,
    /// Number of ranks on the rank's host.
    pub(super) local_world: u32,
    /// Index of the rank's host.
    pub(super) host: u32,
    /// Number of threads for compute on the CPU.
    pub(super) threads: u32,
    pub(super) trial: &'a str,
    pub(super) attempt: AttemptId,
    pub(super) rendezvous: &'a Rendezvous,
    /// The network interface towards the other ranks, if known.
    pub(super) interface: Option<String>,
}

/// Proxy variables that stop JAX from connecting to other ranks directly.
const PROXIES: [&str; 6] =
    ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "grpc_proxy", "GRPC_PROXY"];

/// Sets the environment variables of a rank. The user's own settings of threads and networks stay.
pub(super) fn apply(command: &mut Command, framework: Framework, rank_env: &RankEnv<'_>) {
    command.envs(common(rank_env)).envs(rank_markers(rank_env.trial, rank_env.attempt));
    command.envs(match framework {
        Framework::Pytorch => Vec::new(),
        Framework::Deepspeed => deepspeed(rank_env),
        Framework::Tensorflow => tensorflow(rank_env),
        Framework::Jax => jax(rank_env),
        Framework::Horovod => horovod(rank_env),
    });
    if framework == Framework::Jax {
        for name in PROXIES {
            command.env_remove(name);
        }
    }
    for (name, value) in preferences(rank_env) {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
}

type Variables = Vec<(&'static str, String)>;

/// Returns the variables that torchrun sets, which many other programs read too.
fn common(rank_env: &RankEnv<'_>) -> Variables {
    let Rendezvous { address, port, hosts, .. } = rank_env.rendezvous;
    vec![
        ("RANK", rank_env.rank.to_string()),
        ("WORLD_SIZE", rank_env.world.to_string()),
        ("LOCAL_RANK", rank_env.local_rank.to_string()),
        ("LOCAL_WORLD_SIZE", rank_env.local_world.to_string()),
        ("GROUP_RANK", rank_env.host.to_string()),
        ("NODE_RANK", rank_env.host.to_string()),
        ("GROUP_WORLD_SIZE", hosts.to_string()),
        ("ROLE_RANK", rank_env.rank.to_string()),
        ("ROLE_WORLD_SIZE", rank_env.world.to_string()),
        ("ROLE_NAME", "default".into()),
        ("MASTER_ADDR", address.clone()),
        ("MASTER_PORT", port.to_string()),
        ("TORCHELASTIC_RUN_ID", rank_env.trial.into()),
        ("TORCHELASTIC_RESTART_COUNT", rank_env.attempt.0.saturating_sub(1).to_string()),
        // Rank 0 itself runs the store for the rendezvous.
        ("TORCHELASTIC_USE_AGENT_STORE", "False".into()),
    ]
}

/// Returns the extra variables of a DeepSpeed rank that MPI did not start.
fn deepspeed(rank_env: &RankEnv<'_>) -> Variables {
    vec![
        ("CROSS_RANK", rank_env.host.to_string()),
        ("CROSS_SIZE", rank_env.rendezvous.hosts.to_string()),
        ("LOCAL_SIZE", rank_env.local_world.to_string()),
    ]
}

/// Returns the variables for TensorFlow: every rank is a worker, the first one the chief.
fn tensorflow(rank_env: &RankEnv<'_>) -> Variables {
    let config = json!({
        "cluster": { "worker": rank_env.rendezvous.peers },
        "task": { "type": "worker", "index": rank_env.rank },
    });
    vec![("TF_CONFIG", config.to_string())]
}

/// Returns Slurm's variables, from which `jax.distributed.initialize()` configures itself. The list of hosts
/// has one name, since the coordinator's address is set separately.
fn jax(rank_env: &RankEnv<'_>) -> Variables {
    let Rendezvous { address, port, hosts, .. } = rank_env.rendezvous;
    vec![
        ("JAX_COORDINATOR_ADDRESS", format!("{address}:{port}")),
        ("SLURM_JOB_ID", port.to_string()),
        ("SLURM_STEP_NODELIST", address.clone()),
        ("SLURM_NTASKS", rank_env.world.to_string()),
        ("SLURM_PROCID", rank_env.rank.to_string()),
        ("SLURM_LOCALID", rank_env.local_rank.to_string()),
        ("SLURM_STEP_NUM_NODES", hosts.to_string()),
    ]
}

/// Returns the variables that horovodrun sets for Gloo.
fn horovod(rank_env: &RankEnv<'_>) -> Variables {
    let Rendezvous { address, port, hosts, .. } = rank_env.rendezvous;
    vec![
        // Only distinguishes hosts; it is never resolved.
        ("HOROVOD_HOSTNAME", format!("host-{}", rank_env.host)),
        ("HOROVOD_RANK", rank_env.rank.to_string()),
        ("HOROVOD_SIZE", rank_env.world.to_string()),
        ("HOROVOD_LOCAL_RANK", rank_env.local_rank.to_string()),
        ("HOROVOD_LOCAL_SIZE", rank_env.local_world.to_string()),
        ("HOROVOD_CROSS_RANK", rank_env.host.to_string()),
        ("HOROVOD_CROSS_SIZE", hosts.to_string()),
        ("HOROVOD_GLOO_RENDEZVOUS_ADDR", address.clone()),
        ("HOROVOD_GLOO_RENDEZVOUS_PORT", port.to_string()),
        ("HOROVOD_CONTROLLER", "gloo".into()),
        ("HOROVOD_CPU_OPERATIONS", "gloo".into()),
    ]
}

/// Returns the variables that help most programs and that the user has not set.
fn preferences(rank_env: &RankEnv<'_>) -> Variables {
    let mut all = vec![
        ("OMP_NUM_THREADS", rank_env.threads.to_string()),
        ("PYTHONUNBUFFERED", "1".into()),
        ("PYTHONFAULTHANDLER", "1".into()),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1".into()),
    ];
    if let Some(interface) = &rank_env.interface {
        for name in ["GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE"] {
            all.push((name, interface.clone()));
        }
        // NCCL takes a name as a prefix, unless `=` precedes it.
        all.push(("NCCL_SOCKET_IFNAME", format!("={interface}")));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn environment(framework: Framework) -> BTreeMap<String, Option<String>> {
        let there: Vec<String> = vec!["10.0.0.2:7001".into(), "10.0.0.2:7002".into()];
        let here = ["10.0.0.1:6001", "10.0.0.1:6002"].map(str::to_owned);
        let peers = here.into_iter().chain(there).collect();
        let rendezvous = Rendezvous::at("10.0.0.1", "10.0.0.1:7000", 2, peers).expect("a port");
        let rank_env = RankEnv {
            rank: 3,
            world: 4,
            local_rank: 1,
            local_world: 2,
            host: 1,
            threads: 6,
            trial: "01T",
            attempt: AttemptId(2),
            rendezvous: &rendezvous,
            interface: Some("eth1".into()),
        };
        let mut command = Command::new("true");
        apply(&mut command, framework, &rank_env);
        let text = |value: &std::ffi::OsStr| value.to_str().expect("UTF-8").to_owned();
        command.get_envs().map(|(name, value)| (text(name), value.map(text))).collect()
    }

    fn check(framework: Framework, expected: &[(&str, &str)]) {
        let found = environment(framework);
        for (name, value) in expected {
            assert_eq!(found.get(*name), Some(&Some((*value).to_owned())), "{framework:?} {name}");
        }
    }

    #[test]
    fn every_framework_finds_what_its_launcher_would_tell() {
        check(
            Framework::Pytorch,
            &[
                ("RANK", "3"),
                ("WORLD_SIZE", "4"),
                ("LOCAL_RANK", "1"),
                ("LOCAL_WORLD_SIZE", "2"),
                ("GROUP_RANK", "1"),
                ("GROUP_WORLD_SIZE", "2"),
                ("MASTER_ADDR", "10.0.0.1"),
                ("MASTER_PORT", "7000"),
                ("TORCHELASTIC_RESTART_COUNT", "1"),
                ("TORCHELASTIC_USE_AGENT_STORE", "False"),
                ("OMP_NUM_THREADS", "6"),
                ("GLOO_SOCKET_IFNAME", "eth1"),
                ("NCCL_SOCKET_IFNAME", "=eth1"),
                ("DTRAIN_ATTEMPT", "2"),
            ],
        );
        check(Framework::Deepspeed, &[("LOCAL_SIZE", "2"), ("CROSS_RANK", "1"), ("CROSS_SIZE", "2")]);
        let workers = r#"["10.0.0.1:6001","10.0.0.1:6002","10.0.0.2:7001","10.0.0.2:7002"]"#;
        let config = format!(r#"{{"cluster":{{"worker":{workers}}},"task":{{"index":3,"type":"worker"}}}}"#);
        check(Framework::Tensorflow, &[("TF_CONFIG", &config)]);
        check(
            Framework::Jax,
            &[
                ("JAX_COORDINATOR_ADDRESS", "10.0.0.1:7000"),
                ("SLURM_NTASKS", "4"),
                ("SLURM_PROCID", "3"),
                ("SLURM_LOCALID", "1"),
                ("SLURM_STEP_NUM_NODES", "2"),
            ],
        );
        check(
            Framework::Horovod,
            &[
                ("HOROVOD_RANK", "3"),
                ("HOROVOD_CROSS_SIZE", "2"),
                ("HOROVOD_GLOO_RENDEZVOUS_PORT", "7000"),
                ("HOROVOD_GLOO_IFACE", "eth1"),
            ],
        );
    }

    #[test]
    fn one_framework_is_not_told_what_another_would_believe() {
        let has = |framework, name: &str| environment(framework).contains_key(name);
        assert!(!has(Framework::Pytorch, "SLURM_JOB_ID") && !has(Framework::Pytorch, "TF_CONFIG"));
        assert_eq!(environment(Framework::Jax).get("https_proxy"), Some(&None), "removed");
    }
}
