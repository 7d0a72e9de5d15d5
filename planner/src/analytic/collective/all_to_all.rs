//! Seconds of an all-to-all, as in sending tokens to their experts or exchanging attention heads.

use super::{GroupTopology, Interconnect};

/// Returns the seconds of an all-to-all in which each member of `group` sends a part of its `bytes` to every
/// other member. `once` is the number of experts per token if a token crosses the network only once per host,
/// so that fewer bytes cross; `None` if it crosses once per expert.
pub fn all_to_all(bytes: f64, once: Option<f64>, group: GroupTopology, links: &Interconnect) -> f64 {
    let size = group.size();
    if size <= 1.0 {
        return 0.0;
    }
    let GroupTopology { inside, outside, link, .. } = group;
    let within = bytes * (inside - 1.0) / size / (link * links.all_to_all);
    let all = bytes * (size - inside) / size;
    let sent = once.map_or(all, |chosen| {
        let hosts = (outside - 1.0) * (1.0 - (1.0 - 1.0 / outside).powf(chosen));
        all.min(bytes / chosen * hosts)
    });
    let across = sent / (links.network * links.all_to_all);
    let start = links.link_start + if group.spans_hosts() { links.network_start } else { 0.0 };
    within.max(across) + start
}

#[cfg(test)]
mod tests {
    use super::super::tests::hosts_of_eight;
    use super::*;

    #[test]
    fn an_all_to_all_that_sends_a_token_once_to_each_host_is_shorter() {
        let links = hosts_of_eight();
        let group = links.group(64.0, 1.0);
        let (every, once) = (all_to_all(1e9, None, group, &links), all_to_all(1e9, Some(8.0), group, &links));
        assert!(once < 0.9 * every, "{once} {every}");
        assert!(all_to_all(1e9, None, links.group(1.0, 1.0), &links) <= 0.0);
    }
}
