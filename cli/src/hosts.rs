//! Connections to the hosts in a recipe's cluster.

use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::kept_connections::LentHosts;
use crate::render::number::{counted, seconds};
use crate::trials::plan_of_trial;
use crate::{slurm_job, this_host};
use dtrain_protocol::{HostFacts, HostNetwork};
use dtrain_recipes::{Bytes, Cluster, Host, LauncherKind, Recipe, SshBackend, Subnet};
use dtrain_runner::launch::HostList;
use dtrain_runner::launch::relay::RemoteHost;
use dtrain_runner::launch::ssh::{ConnectReport, HostUnavailable, allow_connections, reach_all};
use dtrain_runner::ledger::TrialDetails;
use dtrain_runner::transport::{UploadOutcome, User};
use std::error::Error;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Connects to all hosts of a recipe; `Err` if one does not answer. Empty for local training.
pub(crate) fn connect_all(context: &Context, recipe: &Recipe) -> Result<Vec<RemoteHost>, CommandError> {
    let (hosts, unusable) = connect(context, recipe)?;
    if unusable.is_empty() { Ok(hosts) } else { Err(refusal(&unusable)) }
}

/// Connects to the hosts for which a recipe is planned: those that answer and are not drained, and as many as train.
/// `Err` if they are too few to start. Empty for local training.
pub(crate) fn connect_to_plan(context: &Context, recipe: &Recipe) -> Result<LentHosts, CommandError> {
    let (hosts, unusable) = connect(context, recipe)?;
    let mut hosts = context.connections.lend(&recipe.cluster, hosts, &unusable);
    let drained = drained(context)?;
    let failure = refusal_if_too_few(recipe, &hosts, &unusable, &drained);
    failure.map_or(Ok(()), Err)?;
    say_unusable(context, &unusable);
    hosts.retain(|host| !drained.has(&host.name) && unusable.iter().all(|silent| silent.host != host.name));
    let mut wanted = 0..recipe.cluster.host_count();
    hosts.retain(|_| wanted.next().is_some());
    Ok(hosts)
}

/// Connects to all hosts of a recipe, also those that do not answer yet. `Err` if too few answer to start. Empty for
/// local training.
pub(crate) fn connect_to_start(context: &Context, recipe: &Recipe) -> Result<Vec<RemoteHost>, CommandError> {
    let (hosts, unusable) = connect(context, recipe)?;
    let failure = refusal_if_too_few(recipe, &hosts, &unusable, &drained(context)?);
    failure.map_or(Ok(hosts), Err)
}

/// Reads the hosts that the user drained.
pub(crate) fn drained(context: &Context) -> Result<HostList, CommandError> {
    let path = context.home.drained();
    HostList::read(&path).map_err(|error| {
        CommandError::new(ExitReason::Infrastructure, format!("cannot read {}", path.display()))
            .cause(error.to_string())
            .hint("`dtrain doctor` checks the state folder")
    })
}

/// Returns the error if fewer hosts can be used than a run needs to start.
fn refusal_if_too_few(
    recipe: &Recipe,
    hosts: &[RemoteHost],
    unusable: &[HostUnavailable],
    drained: &HostList,
) -> Option<CommandError> {
    let is_silent = |host: &RemoteHost| unusable.iter().any(|one| one.host == host.name);
    let usable = hosts.iter().filter(|host| !is_silent(host) && !drained.has(&host.name)).count();
    let needed = recipe.cluster.needed_to_start() as usize;
    if hosts.is_empty() || usable >= needed {
        return None;
    }
    let idle = hosts.iter().filter(|host| drained.has(&host.name));
    let failure = idle.fold(refusal(unusable), |failure, host| {
        let name = &host.name;
        failure.cause(format!("{name}: it is drained; `dtrain drain {name} --lift` uses it again"))
    });
    let found = counted(usable as u64, "host");
    Some(failure.cause(format!("{found} can be used, and {needed} are needed to start (`cluster.least`)")))
}

/// Names the hosts without which a run starts.
fn say_unusable(context: &Context, unusable: &[HostUnavailable]) {
    for HostUnavailable { host, error } in unusable {
        let warning = context.out.paint.yellow("warning");
        context.out.say(&format!("{warning}: {host} cannot be used: {}", error_chain(error)));
    }
}

/// Connects to the hosts of a recipe that answer now. Empty for local training.
pub(crate) fn connect_answering(context: &Context, recipe: &Recipe) -> Result<Vec<RemoteHost>, CommandError> {
    let (hosts, unusable) = connect(context, recipe)?;
    refusal_if_all_silent(&hosts, &unusable).map_or(Ok(hosts), Err)
}

/// Returns the error if none of the hosts answers.
fn refusal_if_all_silent(hosts: &[RemoteHost], unusable: &[HostUnavailable]) -> Option<CommandError> {
    (!hosts.is_empty() && unusable.len() == hosts.len()).then(|| refusal(unusable))
}

/// Connects to the hosts of a recipe, and returns those that answer now. Empty for local training.
pub(crate) fn answering(context: &Context, recipe: &Recipe) -> Result<LentHosts, CommandError> {
    let (hosts, unusable) = connect(context, recipe)?;
    let mut hosts = context.connections.lend(&recipe.cluster, hosts, &unusable);
    hosts.retain(|host| unusable.iter().all(|silent| silent.host != host.name));
    Ok(hosts)
}

/// Connects to the hosts of a trial that answer now. Empty for local training and for Slurm jobs, whose nodes
/// write into this state folder.
pub(crate) fn connect_hosts_of_trial(
    context: &Context,
    trial: &TrialDetails,
) -> Result<LentHosts, CommandError> {
    let folder = context.home.trial(&trial.row.id);
    if !folder.remote_hosts_file().exists() || folder.job().exists() {
        return Ok(LentHosts::default());
    }
    let recipe = plan_of_trial(trial)?.recipe;
    let (hosts, unusable) = connect(context, &recipe)?;
    let failure = refusal_if_all_silent(&hosts, &unusable);
    failure.map_or_else(|| Ok(context.connections.lend(&recipe.cluster, hosts, &unusable)), Err)
}

/// Connects like [`connect_hosts_of_trial`]; also returns the hosts that did not answer, with reasons.
pub(crate) fn connect_hosts_of_trial_and_report(
    context: &Context,
    trial: &TrialDetails,
) -> Result<(Vec<RemoteHost>, Vec<(String, String)>), CommandError> {
    let folder = context.home.trial(&trial.row.id);
    if !folder.remote_hosts_file().exists() || folder.job().exists() {
        return Ok((Vec::new(), Vec::new()));
    }
    let (mut hosts, unusable) = connect(context, &plan_of_trial(trial)?.recipe)?;
    hosts.retain(|host| unusable.iter().all(|silent| silent.host != host.name));
    Ok((hosts, unusable.iter().map(|one| (one.host.clone(), error_chain(&one.error))).collect()))
}

/// Connects to a host through the SSH backend `way`; `Err` gives the reason.
pub(crate) fn connect_one(host: Host, way: SshBackend) -> Result<RemoteHost, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let reached = reach_all(&[host], way, &ssh_user(), &program, None).map_err(|error| error.to_string())?;
    let (host, arrival) = reached.into_iter().next().ok_or("no host was named")?;
    arrival.map(|_| host).map_err(|unusable| error_chain(&unusable.error))
}

fn connect(
    context: &Context,
    recipe: &Recipe,
) -> Result<(Vec<RemoteHost>, Vec<HostUnavailable>), CommandError> {
    let cluster = &recipe.cluster;
    match cluster.launcher {
        LauncherKind::Ssh => {}
        LauncherKind::Slurm => return slurm_job::hosts_of(context).map(|nodes| (nodes, Vec::new())),
        LauncherKind::Local => return Ok((Vec::new(), Vec::new())),
    }
    allow_connections(cluster.hosts.len())
        .map_err(|reason| CommandError::new(ExitReason::Preflight, "too many hosts").cause(reason))?;
    connect_missing(context, cluster, |hosts| {
        let program = this_host::program()?;
        reach_all(hosts, cluster.transport, &ssh_user(), &program, cluster.network)
            .map_err(this_host::no_program)
    })
}

/// A host, with the report on its connection, or the reason why it cannot be used now.
type ReachedHost = (RemoteHost, Result<ConnectReport, HostUnavailable>);

/// Connects by `reach` to the hosts of a cluster to which no connection is kept. Returns all hosts in order, and those
/// that cannot be used.
fn connect_missing(
    context: &Context,
    cluster: &Cluster,
    reach: impl FnOnce(&[Host]) -> Result<Vec<ReachedHost>, CommandError>,
) -> Result<(Vec<RemoteHost>, Vec<HostUnavailable>), CommandError> {
    let take = |host: &Host| context.connections.take(host, cluster.transport, cluster.network);
    let kept: Vec<Option<RemoteHost>> = cluster.hosts.iter().map(take).collect();
    let missing = cluster.hosts.iter().zip(&kept).filter(|(_, kept)| kept.is_none());
    let missing: Vec<Host> = missing.map(|(host, _)| host.clone()).collect();
    let mut reached = if missing.is_empty() { Vec::new() } else { reach(&missing)? }.into_iter();
    let (mut hosts, mut unusable) = (Vec::new(), Vec::new());
    for kept in kept {
        let (host, arrival) = match kept {
            Some(host) => (host, None),
            None => reached.next().map(|(host, arrival)| (host, Some(arrival))).expect("one for each host"),
        };
        hosts.push(host);
        match arrival {
            Some(Ok(arrival)) => context.out.say(&arrival_text(&arrival)),
            Some(Err(one)) => unusable.push(one),
            None => {}
        }
    }
    Ok((hosts, unusable))
}

/// Returns the user whose SSH configuration applies to connections.
pub(crate) fn ssh_user() -> User {
    let name = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| "root".into());
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
    User { name, home, config: None }
}

/// Returns the facts that the planner needs, about `hosts`, or about this machine if there are none.
///
/// Several hosts are planned as if each had the resources of the weakest.
pub(crate) fn facts(hosts: &mut [RemoteHost]) -> Result<HostFacts, CommandError> {
    let mut all: Vec<HostFacts> = Vec::new();
    for host in hosts.iter_mut() {
        all.push(host.facts().map_err(|reason| {
            CommandError::new(ExitReason::Preflight, format!("{} cannot be used", host.name)).cause(reason)
        })?);
    }
    let names = hosts.iter().map(|host| host.name.clone()).collect();
    let network = hosts.first().and_then(RemoteHost::network);
    Ok(combine_facts(&all, names, network).unwrap_or_else(this_host::facts))
}

/// Combines the facts of several hosts into those of the weakest. `names` are their names, `network` the
/// network between them; `None` without hosts.
fn combine_facts(all: &[HostFacts], mut names: Vec<String>, network: Option<Subnet>) -> Option<HostFacts> {
    let first = all.first()?.clone();
    let weakest = all.iter().skip(1).fold(first, |weakest, other| HostFacts {
        cores: weakest.cores.min(other.cores),
        memory_bytes: weakest.memory_bytes.min(other.memory_bytes),
        gpus: if other.gpus.len() < weakest.gpus.len() { other.gpus.clone() } else { weakest.gpus },
        ..weakest
    });
    names.sort();
    let hosts = u32::try_from(all.len()).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
    let links = (all.len() > 1).then_some(HostNetwork { hosts: names, network });
    Some(HostFacts { hosts, links, ..weakest })
}

fn arrival_text(arrival: &ConnectReport) -> String {
    let ConnectReport { host, connected, upload } = arrival;
    let connected = seconds(connected.as_secs_f64());
    match upload {
        UploadOutcome::Sent { bytes, seconds: took, was_damaged } => {
            let (bytes, took) = (Bytes(*bytes), seconds(*took));
            let why = if *was_damaged { ", because its copy was damaged" } else { "" };
            format!("{host}: connected in {connected}, sent the program ({bytes}) in {took}{why}")
        }
        UploadOutcome::AlreadyThere => format!("{host}: connected in {connected}"),
    }
}

/// Formats an error with all its causes in one line.
pub(crate) fn error_chain(error: &(dyn Error + 'static)) -> String {
    std::iter::successors(Some(error), |&error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

fn refusal(unusable: &[HostUnavailable]) -> CommandError {
    let message = match unusable.len() {
        0 => "too few hosts can be used".to_owned(),
        silent => format!("{} cannot be used", counted(silent as u64, "host")),
    };
    let failure = CommandError::new(ExitReason::Preflight, message);
    let failure = unusable.iter().fold(failure, |failure, HostUnavailable { host, error }| {
        failure.cause(format!("{host}: {}", error_chain(error)))
    });
    let names: Vec<&str> = unusable.iter().map(|one| one.host.as_str()).collect();
    if names.is_empty() {
        return failure;
    }
    failure.hint(format!("`dtrain doctor {}` shows details", names.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Output;
    use dtrain_runner::launch::relay::Connector;
    use dtrain_runner::ledger::host_digest;
    use dtrain_runner::transport::TransportError;
    use std::io;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    /// A connector that is never used: nothing is asked here.
    struct UnusedConnector;

    impl Connector for UnusedConnector {
        fn dial(&mut self) -> io::Result<UnixStream> {
            unreachable!("nothing is asked")
        }
    }

    fn cluster(hosts: &[&str]) -> Cluster {
        let host = |name: &&str| Host { address: (*name).to_owned(), port: 22, user: None, via: None };
        Cluster { hosts: hosts.iter().map(host).collect(), ..Cluster::default() }
    }

    /// Connects to a cluster of which the host `silent` does not answer; returns it and the hosts that were connected.
    fn connected(context: &Context, cluster: &Cluster, silent: &str) -> (LentHosts, Vec<String>) {
        let mut dialed = Vec::new();
        let reach = |host: &Host| {
            let name = host.address.clone();
            let remote = RemoteHost::new(name.clone(), Box::new(UnusedConnector)).on(cluster.network);
            let arrival = if name == silent {
                let error = TransportError::Name(name.clone(), "it is silent");
                Err(HostUnavailable { host: name, error })
            } else {
                let (connected, upload) = (Duration::ZERO, UploadOutcome::AlreadyThere);
                Ok(ConnectReport { host: name, connected, upload })
            };
            (remote, arrival)
        };
        let found = connect_missing(context, cluster, |hosts| {
            dialed.extend(hosts.iter().map(|host| host.address.clone()));
            Ok(hosts.iter().map(reach).collect())
        });
        let (hosts, unusable) = found.expect("reaching does not fail");
        let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
        let wanted: Vec<&str> = cluster.hosts.iter().map(|host| host.address.as_str()).collect();
        assert_eq!(names, wanted, "in the order of the recipe");
        (context.connections.lend(cluster, hosts, &unusable), dialed)
    }

    #[test]
    fn a_step_connects_only_to_hosts_that_the_steps_before_it_did_not_reach() {
        let context = Context::new(Output::new(false, true), Some("/nowhere".into())).expect("a context");
        let all = cluster(&["a", "b", "c"]);
        let (mut lent, dialed) = connected(&context, &all, "b");
        assert_eq!(dialed, ["a", "b", "c"]);
        lent.retain(|host| host.name == "a");
        // Those that the first step does not use are free before it ends.
        let (other, dialed) = connected(&context, &cluster(&["c", "d"]), "");
        assert_eq!(dialed, ["d"]);
        drop((lent, other));
        let (lent, dialed) = connected(&context, &all, "");
        assert_eq!(dialed, ["b"], "it is tried again");
        drop(lent);
        assert_eq!(connected(&context, &all, "").1, [""; 0]);
        let network = Some("10.0.0.0/16".parse().expect("a network"));
        for other in [
            Cluster { network, ..all.clone() },
            Cluster { transport: SshBackend::OpenSsh, ..all.clone() },
            Cluster {
                hosts: all.hosts.iter().map(|host| Host { port: 23, ..host.clone() }).collect(),
                ..all
            },
        ] {
            assert_eq!(connected(&context, &other, "").1, ["a", "b", "c"], "{other:?}");
        }
    }

    #[test]
    fn facts_of_several_hosts_tell_which_they_are_and_over_what_they_communicate() {
        let here = this_host::facts();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let network = |text: &str| Some(text.parse().expect("a network"));
        let of = |hosts: &[&str], over| {
            let facts = vec![here.clone(); hosts.len()];
            host_digest(&combine_facts(&facts, names(hosts), over).expect("there are hosts"))
        };
        let fast = of(&["a", "b"], network("10.0.0.0/16"));
        assert_eq!(fast, of(&["b", "a"], network("10.0.0.0/16")), "their order makes no links");
        assert_ne!(fast, of(&["a", "b"], network("192.168.0.0/16")));
        assert_ne!(fast, of(&["a", "b"], None));
        assert_ne!(fast, of(&["a", "c"], network("10.0.0.0/16")));
        // A single host has no links, so its digest and its cached rates stay valid.
        assert_eq!(of(&["a"], network("10.0.0.0/16")), host_digest(&here));
        assert_eq!(combine_facts(&[], Vec::new(), None), None);
    }
}
