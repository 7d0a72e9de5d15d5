//! The page of known accelerators and machine types, `docs/parts.md`.

use crate::engine::ALL;
use crate::hardware::cloud::cloud_machines;
use crate::hardware::{GpuSpec, LinkClass, gpus};
use dtrain_recipes::Precision;
use std::fmt::Write as _;

/// Number of bytes in a GiB.
const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// Columns of rates, on which the time of a step depends.
const RATES: [&str; 5] = ["dense_16", "dense_8", "dense_32", "memory_gbs", "link_gbs"];

/// Returns the page of all accelerators and machine types that `dtrain plan --on` knows, as Markdown.
pub fn page() -> String {
    let mut page = String::from(
        "# Known parts\n\nThe accelerators and the machine types that `dtrain plan --on` and `dtrain estimate` know. \
        Any other is described\nby [`cluster.gpu`](planning-elsewhere.md#machines). A test writes this page from\n\
        [gpus.csv](../planner/src/hardware/data/gpus.csv) and\n\
        [cloud_machines.csv](../planner/src/hardware/data/cloud_machines.csv); the address of each figure is in\n\
        [gpu_sources.csv](../planner/src/hardware/data/gpu_sources.csv).\n\n## Accelerators\n\nMemory is that which the \
        driver reports. TFLOP/s are those of dense products of bf16, or of f16 where there is no bf16, with f32\n\
        accumulation. Links are those that are assumed within a host. Of a part with `*`, a rate is \
        unverified: it was\nfound in no source that was opened, so that the interval is wider.\n\n\
        | part | memory, GiB | products | TFLOP/s | memory, GB/s | links in a host, GB/s one way | engines |\n\
        |---|---|---|---|---|---|---|\n",
    );
    let mut parts: Vec<&GpuSpec> = gpus().iter().collect();
    parts.sort_by(|a, b| a.name.cmp(&b.name));
    for part in parts {
        _ = writeln!(
            page,
            "| {}{} | {:.1} | {} | {} | {} | {} | {} |",
            part.name,
            if RATES.into_iter().any(|column| part.is_unverified(column)) { " *" } else { "" },
            part.memory_bytes() / GIB,
            precisions(part),
            part.dense_16,
            part.memory_gbs,
            links(part),
            engines(part)
        );
    }
    page += "\n## Machine types\n\n| type | provider | accelerators | network, Gbit/s of the machine |\n|---|---|---|---|\n";
    for machine in cloud_machines() {
        let network =
            if machine.network_gbits > 0.0 { machine.network_gbits.to_string() } else { "–".into() };
        _ = writeln!(
            page,
            "| {} | {} | {} × {} | {network} |",
            machine.name, machine.provider, machine.gpus, machine.part
        );
    }
    page
}

fn precisions(part: &GpuSpec) -> String {
    let all = [Precision::Fp8, Precision::Bf16, Precision::F16, Precision::F32];
    let some: Vec<&str> =
        all.into_iter().filter(|one| part.has_precision(*one)).map(Precision::name).collect();
    some.join(", ")
}

fn links(part: &GpuSpec) -> String {
    match part.link_class {
        LinkClass::NvSwitch => format!("{} (all to all)", part.link_gbs),
        _ if part.link_gbs > 0.0 => format!("{}; bridge {}", part.link_class.words(), part.link_gbs),
        class => class.words().to_owned(),
    }
}

fn engines(part: &GpuSpec) -> String {
    let some: Vec<&str> = ALL
        .into_iter()
        .filter(|engine| engine.kinds().contains(&part.kind()))
        .map(|engine| engine.name())
        .collect();
    some.join(", ")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    #[test]
    fn the_page_of_parts_is_that_of_the_tables() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/parts.md");
        if std::env::var("INSTA_UPDATE").is_ok_and(|value| value == "always") {
            fs::write(&path, super::page()).expect("the page can be written");
        }
        let page = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            page == super::page(),
            "docs/parts.md is old; `INSTA_UPDATE=always tests/run the_page_of_parts` writes it"
        );
    }

    #[test]
    fn every_part_has_an_engine() {
        for part in crate::hardware::gpus() {
            assert!(!super::engines(part).is_empty(), "{}", part.name);
        }
    }
}
