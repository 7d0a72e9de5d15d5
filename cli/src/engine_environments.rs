//! Python environments of a recipe's engine, on all hosts of its cluster.

use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::hosts;
use dtrain_recipes::{LauncherKind, Recipe};
use dtrain_runner::engine_environment::{EngineEnvironment, examine};
use dtrain_runner::launch::relay::RemoteHost;
use std::collections::BTreeMap;
use std::thread;

/// Name of this machine where its environment is shown beside those of other hosts.
pub(crate) const THIS_MACHINE: &str = "this machine";

/// Checks that every host of a recipe that answers has what its engine needs. Returns the environments by host;
/// empty for dtrain's own worker.
pub(crate) fn require(
    context: &Context,
    recipe: &Recipe,
) -> Result<BTreeMap<String, EngineEnvironment>, CommandError> {
    if !recipe.engine.is_foreign() {
        return Ok(BTreeMap::new());
    }
    let mut others = hosts::answering(context, recipe)?;
    if others.is_empty() && recipe.cluster.launcher != LauncherKind::Local {
        return Ok(BTreeMap::new());
    }
    let python = recipe.cluster.python.as_deref();
    let found = on_all_hosts(&mut others, |host| match host {
        Some(host) => host.engine(recipe.engine, python),
        None => examine(&context.home, recipe.engine, python),
    });
    let (good, bad): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, result)| result.is_ok());
    if bad.is_empty() {
        return Ok(good.into_iter().filter_map(|(host, found)| Some((host, found.ok()?))).collect());
    }
    let failure =
        CommandError::new(ExitReason::Preflight, format!("the engine {} cannot be started", recipe.engine));
    Err(bad
        .into_iter()
        .filter_map(|(host, found)| Some(format!("{host}: {}", found.err()?)))
        .fold(failure, CommandError::cause))
}

/// Calls `work` for every host at once, or for this machine (`None`) without others; returns the results by
/// host.
pub(crate) fn on_all_hosts<T: Send>(
    others: &mut [RemoteHost],
    work: impl Fn(Option<&mut RemoteHost>) -> T + Sync,
) -> Vec<(String, T)> {
    if others.is_empty() {
        return vec![(THIS_MACHINE.to_owned(), work(None))];
    }
    thread::scope(|scope| {
        let start = |host| {
            let work = &work;
            scope.spawn(move || {
                let host: &mut RemoteHost = host;
                (host.name.clone(), work(Some(host)))
            })
        };
        let running: Vec<_> = others.iter_mut().map(start).collect();
        running.into_iter().map(|thread| thread.join().expect("the work does not panic")).collect()
    })
}

/// Returns the versions of the environments for the provenance of a trial: by package, with the hosts whose
/// version differs from that of the first.
pub(crate) fn provenance(found: &BTreeMap<String, EngineEnvironment>) -> BTreeMap<String, String> {
    let Some(first) = found.values().next() else { return BTreeMap::new() };
    let text = |name: &String, version: &String| {
        let differs = |(host, other): (&String, &EngineEnvironment)| {
            let own = other.versions.get(name).filter(|own| *own != version)?;
            Some(format!("; {own} on {host}"))
        };
        let others: String = found.iter().filter_map(differs).collect();
        (format!("engine.{name}"), format!("{version}{others}"))
    };
    let mut versions: BTreeMap<_, _> =
        first.versions.iter().map(|(name, version)| text(name, version)).collect();
    versions.insert("engine.interpreter".into(), first.python.display().to_string());
    versions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_with_another_version_is_named() {
        let environment = |torch: &str| EngineEnvironment {
            python: "/env/bin/python".into(),
            versions: BTreeMap::from([("torch".to_owned(), torch.to_owned())]),
        };
        let found = BTreeMap::from([
            ("gpu-01".to_owned(), environment("2.15.0")),
            ("gpu-02".to_owned(), environment("2.14.1")),
        ]);
        let recorded = provenance(&found);
        assert_eq!(recorded["engine.torch"], "2.15.0; 2.14.1 on gpu-02");
        assert_eq!(recorded["engine.interpreter"], "/env/bin/python");
        assert_eq!(provenance(&BTreeMap::new()), BTreeMap::new());
    }
}
