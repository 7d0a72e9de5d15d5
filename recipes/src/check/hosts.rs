//! Reads the hosts of a cluster from a recipe, and expands ranges such as `gpu-[01-04]`.

use super::parse_value::{kind_of, parse};
use super::{ResolvedValue, suggestion};
use crate::cluster::Host;
use crate::document::{Document, SpannedValue, Value};
use crate::keys::find;
use crate::problem::Problem;
use crate::source::Origin;

/// Maximum number of hosts in one recipe.
const MOST: usize = 65_536;

/// A host with the position of its address in the recipe.
pub(super) struct DeclaredHost {
    pub(super) host: Host,
    pub(super) origin: Origin,
}

/// Returns the valid hosts declared in `document`, and the problems of the invalid ones.
pub(super) fn declared_hosts(document: &Document) -> (Vec<DeclaredHost>, Vec<Problem>) {
    let mut problems = Vec::new();
    let mut named: Vec<DeclaredHost> = Vec::new();
    let Some(node) = document.get("cluster.hosts") else { return (named, problems) };
    let Value::List(items) = &node.value else {
        let message = format!("`cluster.hosts` must be a list of hosts, found {}", kind_of(node));
        let problem = Problem::new(message).at(&node.origin);
        return (
            named,
            vec![problem.hint("write `[[cluster.hosts]]` with two brackets, once for each host")],
        );
    };
    for item in items {
        named.extend(parse_host(item, &mut problems));
        if named.len() > MOST {
            problems.push(Problem::new(format!("more than {MOST} hosts")).at(&item.origin));
            break;
        }
    }
    problems.extend(duplicate_hosts(&named));
    (named, problems)
}

/// Reports hosts with the same address and port: two names for one machine would start two agents on it.
fn duplicate_hosts(named: &[DeclaredHost]) -> Vec<Problem> {
    let mut seen = std::collections::BTreeMap::new();
    let mut problems = Vec::new();
    for host in named {
        let key = (host.host.address.as_str(), host.host.port);
        if let Some(first) = seen.insert(key, &host.origin) {
            let problem =
                Problem::new(format!("host \"{}\" is named twice", host.host.address)).at(&host.origin);
            problems.push(problem.note_at("first", first));
            break;
        }
    }
    problems
}

fn parse_host(item: &SpannedValue, problems: &mut Vec<Problem>) -> Vec<DeclaredHost> {
    let Some(table) = item.table() else {
        let message = format!("a host must be a table or a text, found {}", kind_of(item));
        problems.push(Problem::new(message).at(&item.origin));
        return Vec::new();
    };
    let before = problems.len();
    let mut meant = None;
    let mut text = |key: &str| {
        let path = format!("cluster.hosts.{key}");
        let (node, shape) = (&table.get(key)?.node, find(&path, None)?.shape);
        parse(&path, shape, node).map_err(|problem| problems.push(problem)).ok()
    };
    let (address, port, user, via) = (text("address"), text("port"), text("user"), text("via"));
    for (key, entry) in table {
        let path = format!("cluster.hosts.{key}");
        if find(&path, None).is_none() {
            let near = suggestion::did_you_mean(&path, None);
            let question = near.as_ref().map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            problems.push(Problem::new(format!("unknown key `{path}`{question}")).at(&entry.key));
            meant = meant.or(near);
        }
    }
    let Some(entry) = table.get("address") else {
        if meant.as_deref() == Some("cluster.hosts.address") {
            return Vec::new();
        }
        let problem = Problem::new("missing `cluster.hosts.address`: name or address").at(&item.origin);
        problems.push(problem.hint("write for example `address = \"gpu-[01-04]\"`"));
        return Vec::new();
    };
    if problems.len() > before {
        return Vec::new();
    }
    let words =
        |value: Option<super::parsed::ParsedValue>| value.and_then(|v| v.text().map(ToOwned::to_owned));
    let (user, via) = (words(user), words(via));
    let port = port.and_then(|port| port.whole()).and_then(|port| u16::try_from(port).ok()).unwrap_or(22);
    match expand_range(&words(address).unwrap_or_default()) {
        Ok(addresses) => addresses
            .into_iter()
            .map(|address| DeclaredHost {
                host: Host { address, port, user: user.clone(), via: via.clone() },
                origin: entry.node.origin.clone(),
            })
            .collect(),
        Err(detail) => {
            let problem = Problem::new(format!("`cluster.hosts.address`: {detail}")).at(&entry.node.origin);
            problems.push(problem.hint("a range is written `gpu-[01-04]` or `gpu-[1,3,7-9]`"));
            Vec::new()
        }
    }
}

/// Expands a host pattern into all its addresses. Numbers keep the width of the first bound: `[08-10]` is 08,
/// 09, 10.
fn expand_range(pattern: &str) -> Result<Vec<String>, String> {
    // A bracket with a colon inside is an IPv6 address, not a range.
    let range = pattern
        .split_once('[')
        .and_then(|(head, rest)| rest.split_once(']').map(|(r, tail)| (head, r, tail)));
    let Some((head, range, tail)) = range.filter(|(_, range, _)| !range.contains(':')) else {
        let is_open = pattern.contains(['[', ']']) && !pattern.contains(':');
        return if is_open || pattern.contains(',') {
            Err(format!("{pattern:?} has no complete range"))
        } else {
            Ok(vec![pattern.to_owned()])
        };
    };
    let mut addresses = Vec::new();
    let tails = expand_range(tail)
        .or_else(|detail| if tail.is_empty() { Ok(vec![String::new()]) } else { Err(detail) })?;
    for part in range.split(',') {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| format!("{text:?} is not a number"));
        let (first, last) = (number(low)?, number(high)?);
        let width = low.trim().len();
        if first > last {
            return Err(format!("the range {part:?} is descending"));
        }
        if (last - first) as usize >= MOST
            || addresses.len() + (last - first + 1) as usize * tails.len() > MOST
        {
            return Err(format!("the range {part:?} stands for more than {MOST} hosts"));
        }
        for number in first..=last {
            addresses.extend(tails.iter().map(|tail| format!("{head}{number:0width$}{tail}")));
        }
    }
    Ok(addresses)
}

pub(super) fn resolved_hosts(hosts: &[DeclaredHost]) -> Vec<ResolvedValue> {
    let of = |(index, named): (usize, &DeclaredHost)| {
        let host = &named.host;
        let optional = |text: &Option<String>| {
            text.as_ref().map_or(super::NOT_SET.to_owned(), |text| format!("{text:?}"))
        };
        let values = [
            ("address", format!("{:?}", host.address)),
            ("port", host.port.to_string()),
            ("user", optional(&host.user)),
            ("via", optional(&host.via)),
        ];
        values.map(|(key, value)| ResolvedValue {
            path: format!("cluster.hosts[{index}].{key}"),
            value,
            origin: named.origin.clone(),
        })
    };
    hosts.iter().enumerate().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::expand_range;

    #[test]
    fn ranges_keep_their_width() {
        let check = |pattern: &str, expected: &[&str]| {
            assert_eq!(expand_range(pattern).unwrap(), expected, "{pattern}");
        };
        check("gpu-[01-03]", &["gpu-01", "gpu-02", "gpu-03"]);
        check("n[8-10].lan", &["n8.lan", "n9.lan", "n10.lan"]);
        check("r[1-2]n[1,3]", &["r1n1", "r1n3", "r2n1", "r2n3"]);
        check("10.0.0.1", &["10.0.0.1"]);
        check("[fe80::1]", &["[fe80::1]"]);
    }

    #[test]
    fn wrong_ranges_are_refused() {
        for pattern in
            ["gpu-[4-1]", "gpu-[a-b]", "gpu-[1-", "gpu-1]", "gpu-[0-99999999]", "a,b", "n[0-999]m[0-999]"]
        {
            assert!(expand_range(pattern).is_err(), "{pattern}");
        }
    }
}
