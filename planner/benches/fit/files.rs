//! Updates the files of constants in place: values change, comments and order stay.

use dtrain_planner::analytic::Constants;
use dtrain_planner::analytic::constants::covariance::CovarianceFile;
use dtrain_planner::fit::ConstantPriors;
use std::fs;
use std::path::{Path, PathBuf};

fn path(name: &str) -> PathBuf {
    let folder = if name == "generations.toml" { "src/hardware/data" } else { "src/analytic/data" };
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(name)
}

/// Writes the values of all fitted constants.
pub(crate) fn write(priors: &ConstantPriors, constants: &Constants, page: &CovarianceFile) {
    fs::write(path("covariance.toml"), covariance(page)).expect("the file can be written");
    let head = "# How many sources of published runs measured what, as `cargo bench --bench fit -- --write` left it.\n\n";
    fs::write(path("experience.toml"), head.to_owned() + &constants.experience.page())
        .expect("the file can be written");
    for file in ["constants.toml", "engines.toml", "generations.toml"] {
        let page = fs::read_to_string(path(file)).expect("the file can be read");
        let mut table = if file == "constants.toml" { "general".to_owned() } else { String::new() };
        let mut lines = Vec::new();
        for line in page.lines() {
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
                table = name.to_owned();
            }
            // dtrain's program for FSDP2 has the constants of the models that it runs.
            let of = if table == "fully_shard" { "hugging_face" } else { &table };
            let key = line.split_once(" = ").map(|(key, _)| format!("{of}.{key}"));
            let fitted = key.and_then(|key| priors.0.iter().find(|prior| prior.constant.name == key));
            lines.push(
                fitted.map_or_else(|| line.to_owned(), |prior| changed(line, prior.constant.of(constants))),
            );
        }
        fs::write(path(file), lines.join("\n") + "\n").expect("the file can be written");
    }
}

/// Returns the line of a constant with another value and its comment in place.
fn changed(line: &str, value: f64) -> String {
    let (key, rest) = line.split_once(" = ").unwrap_or((line, ""));
    let wide = rest.find('#').unwrap_or(0);
    let comment = rest.get(wide..).filter(|comment| comment.starts_with('#'));
    let digits = three_digits(value);
    match comment {
        Some(comment) => format!("{key} = {digits:<width$}{comment}", width = wide.max(digits.len() + 1)),
        None => format!("{key} = {digits}"),
    }
}

/// Formats a value with three significant digits.
pub(crate) fn three_digits(value: f64) -> String {
    let rounded: f64 = format!("{value:.2e}").parse().expect("it is a number");
    let text = if (1e-2..1e4).contains(&rounded) { format!("{rounded}") } else { format!("{rounded:e}") };
    if text.contains('.') || text.contains('e') { text } else { format!("{text}.0") }
}

/// Returns the contents of the covariance file.
fn covariance(page: &CovarianceFile) -> String {
    let mut text = "# The covariance of the logarithms of the fitted constants, as `cargo bench --bench fit -- --write` left it: the lower\n\
        # factor L of L·Lᵀ, a row for each constant.\n\nnames = [\n"
        .to_owned();
    for name in &page.names {
        text += &format!("    \"{name}\",\n");
    }
    text += "]\nfactor = [\n";
    for row in &page.factor {
        let cells: Vec<String> = row.iter().map(|value| format!("{:.4}", value + 0.0)).collect();
        text += &format!("    [{}],\n", cells.join(", "));
    }
    text + "]\n"
}
