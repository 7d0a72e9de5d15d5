//! Parser of the hosts that `dtrain plan --on` describes.

use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use dtrain_planner::analytic::search::HomogeneousCluster;
use dtrain_planner::hardware::GpuSpec;
use dtrain_planner::hardware::gpu_names::{GpuNameError, ParsedGpuName, parse_gpu_name};
use dtrain_planner::hardware::{gpus, normalized_gpu_name};

/// Least similarity, from 0 to 1, of a known GPU type that is suggested for a misspelled one.
const LIKE: f64 = 0.8;

/// Parses groups of equal hosts, each `HOSTSxGPUS TYPE`, joined by `+`.
pub(super) fn parse_host_groups(
    on: &str,
    network: Option<f64>,
) -> Result<Vec<HomogeneousCluster>, CommandError> {
    let groups =
        on.split('+').map(|group| parse_host_group(group, network)).collect::<Result<Vec<_>, _>>()?;
    let all = groups.iter().try_fold(0, |all: u32, group| all.checked_add(group.devices));
    match all {
        Some(_) => Ok(groups),
        None => Err(CommandError::new(ExitReason::Usage, format!("`--on {on:?}` is too many GPUs"))),
    }
}

/// Parses one group of equal hosts, `HOSTSxGPUS TYPE`.
fn parse_host_group(on: &str, network: Option<f64>) -> Result<HomogeneousCluster, CommandError> {
    let wrong = |what: String| {
        CommandError::new(ExitReason::Usage, what).hint(
            "write `--on \"2048x8 H100-SXM-80GB\"`: hosts, GPUs per host and GPU type; `+` joins groups",
        )
    };
    let nameless = || wrong(format!("`--on {on:?}` names no GPU type"));
    if on.trim().is_empty() {
        return Err(nameless());
    }
    let (size, part) = split_count_and_type(on);
    let count = |text: &str| text.trim().parse().ok().filter(|count| (1..=1_000_000).contains(count));
    let numbers = size.split_once(TIMES).and_then(|(hosts, each)| count(hosts).zip(count(each)));
    let Some((hosts, per_host)) = numbers else {
        return Err(wrong(format!("`{size}` is not a number of hosts and GPUs per host")));
    };
    if part.is_empty() {
        return Err(nameless());
    }
    let ParsedGpuName { gpu, watts, memory } =
        parse_gpu_name(part).map_err(|error| unknown_gpu_type(part, &error))?;
    if u32::checked_mul(hosts, per_host).is_none() {
        return Err(wrong(format!("`{size}` is too many GPUs")));
    }
    let usual = HomogeneousCluster { watts, memory, ..HomogeneousCluster::of(gpu, hosts, per_host) };
    match network {
        None => Ok(usual),
        Some(gbit) if gbit.is_finite() && gbit > 0.0 => {
            Ok(HomogeneousCluster { network: gbit / 8.0 * 1e9, ..usual })
        }
        Some(gbit) => {
            Err(CommandError::new(ExitReason::Usage, format!("`--network {gbit}` is not a valid bandwidth"))
                .hint("give the Gbit/s per GPU, such as `--network 400`"))
        }
    }
}

/// Accepted separators between the number of hosts and the number of GPUs per host.
const TIMES: [char; 3] = ['x', 'X', '×'];

/// Splits `2048x8 H100` into `2048x8` and `H100`; blanks around the `x` are allowed.
fn split_count_and_type(on: &str) -> (&str, &str) {
    let on = on.trim();
    let is_number = |c: char| c.is_ascii_digit() || c == '-';
    let hosts = on.len() - on.trim_start_matches(is_number).len();
    let rest = on[hosts..].trim_start();
    let Some(each) = rest.strip_prefix(TIMES) else { return on.split_once(' ').unwrap_or((on, "")) };
    let part = each.trim_start().trim_start_matches(is_number);
    let size = on[..on.len() - part.len()].trim_end();
    (size, part.trim())
}

/// Builds the error for a text that is no GPU type, with suggestions.
fn unknown_gpu_type(part: &str, error: &GpuNameError) -> CommandError {
    match error {
        GpuNameError::Unknown(odd) => unknown(part, odd.as_deref()),
        GpuNameError::Memory(size, sold) => {
            let sold: Vec<String> = sold.iter().map(|size| format!("{size} GB")).collect();
            CommandError::new(ExitReason::Usage, format!("`{part}` does not exist with {size} GB of memory"))
                .hint(format!("it has {}", sold.join(" or ")))
        }
        GpuNameError::NoPower => CommandError::new(
            ExitReason::Usage,
            format!("no power limit of `{part}` is known: name the GPU type alone"),
        ),
        GpuNameError::Power(watts, low, high) => {
            let what = format!("`{part}` cannot run with a power limit of {watts:.0} W");
            CommandError::new(ExitReason::Usage, what)
                .hint(format!("give {low:.0} to {high:.0} W, or no limit"))
        }
    }
}

fn unknown(part: &str, odd: Option<&str>) -> CommandError {
    let failure = CommandError::new(ExitReason::Usage, format!("unknown GPU type `{part}`"));
    if let Some(odd) = odd {
        let failure = failure.cause(format!("`{odd}` is no part of the name of a GPU"));
        let is_size = odd.chars().all(|c| c.is_ascii_digit() || TIMES.contains(&c));
        return match is_size {
            true => failure.hint("join groups with `+`, such as `--on \"1x8 H100 + 1x8 A100\"`"),
            false => failure
                .hint("write the GPU type alone, such as `H100`, `H100-SXM-80GB` or `NVIDIA A100 40GB PCIe`"),
        };
    }
    let words = |gpu: &GpuSpec| gpu.words.join(" ").to_uppercase();
    let meant = normalized_gpu_name(part);
    let likeness = |gpu: &GpuSpec| strsim::jaro_winkler(&meant, &gpu.words.concat());
    let mut near: Vec<(f64, &GpuSpec)> = gpus().iter().map(|gpu| (likeness(gpu), gpu)).collect();
    near.retain(|(likeness, _)| *likeness >= LIKE);
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    let near: Vec<String> = near.iter().take(3).map(|(_, gpu)| words(gpu)).collect();
    match near.split_last() {
        None => {
            let known: Vec<String> = gpus().iter().map(words).collect();
            failure.hint(format!("known types: {}", known.join(", ")))
        }
        Some((only, [])) => failure.hint(format!("did you mean {only}?")),
        Some((last, others)) => failure.hint(format!("did you mean {} or {last}?", others.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::color::ColorMode;

    fn size(on: &str) -> Vec<(u32, u32)> {
        let groups = parse_host_groups(on, None)
            .unwrap_or_else(|failure| panic!("{}", failure.render(ColorMode::plain())));
        groups.iter().map(|group| (group.devices, group.per_host)).collect()
    }

    fn unknown_gpu_type(on: &str) -> String {
        parse_host_groups(on, None).expect_err("it is wrong").render(ColorMode::plain())
    }

    #[test]
    fn blanks_may_stand_around_numbers() {
        for on in [
            "64x8 H100",
            "64 x 8 H100",
            " 64  ×8   H100 ",
            "64X8 H100-SXM-80GB",
            "64x 8H100",
            "64x8 H100 SXM5",
        ] {
            assert_eq!(size(on), [(512, 8)], "{on}");
        }
        assert_eq!(size("2 x 8 H100 + 4x4 A100"), [(16, 8), (16, 4)]);
    }

    #[test]
    fn wrong_sizes_are_named() {
        for (on, size) in [
            ("-4x8 H100", "-4x8"),
            ("H100", "H100"),
            ("64 H100", "64"),
            ("0x8 H100", "0x8"),
            ("8xH100", "8x"),
        ] {
            let text = unknown_gpu_type(on);
            assert!(text.contains(&format!("`{size}` is not a number of hosts")), "{on}: {text}");
        }
        for on in ["64x8", "", "64x8 H100 +"] {
            assert!(unknown_gpu_type(on).contains("names no GPU type"), "{on}");
        }
        assert!(unknown_gpu_type("1000000x1000000 H100").contains("too many GPUs"));
    }

    #[test]
    fn a_name_is_read_whole() {
        let text = unknown_gpu_type("1x8 H100 1x8 A100");
        assert!(text.contains("`1x8` is no part") && text.contains("join groups with `+`"), "{text}");
        let text = unknown_gpu_type("1x8 not an H100 but a V100");
        assert!(text.contains("`not` is no part of the name of a GPU"), "{text}");
        for (on, near) in [("8x8 H1000", "H100"), ("8x8 A1000", "A100"), ("8x8 B2000", "B200")] {
            let text = unknown_gpu_type(on);
            assert!(
                text.contains("unknown GPU type") && text.contains("did you mean") && text.contains(near),
                "{text}"
            );
        }
        assert!(unknown_gpu_type("8x8 H100-SXM-40GB").contains("does not exist with 40 GB"));
        assert!(unknown_gpu_type("8x8 H100 1W").contains("give 175 to 875 W"));
    }

    #[test]
    fn the_nearest_types_are_suggested_and_all_only_where_none_is_near() {
        let text = unknown_gpu_type("64x8 H10O");
        assert!(text.contains("unknown GPU type `H10O`") && text.contains("did you mean H100"), "{text}");
        assert!(!text.contains("GAUDI"), "{text}");
        assert!(unknown_gpu_type("64x8 MI-3OO").contains("did you mean MI3"));
        assert!(unknown_gpu_type("64x8 Frobnicator").contains("known types: GB300"));
    }
}
