use super::*;
use cloud::cloud_machines;

#[test]
fn every_part_has_a_generation_and_figures() {
    for part in gpus() {
        let generation = part.generation();
        assert!(part.dense_16 > 0.0 && part.memory_gbs > 0.0 && part.driver_mib > 0, "{part:?}");
        assert!(part.pcie_gbs > 0.0 && part.multiprocessors > 0.0 && part.network_gbits > 0.0, "{part:?}");
        assert!(part.dense_8 <= 0.0 || generation.ceiling_8 > 0.0, "{part:?}");
        assert!(part.link_class != LinkClass::NvSwitch || part.link_gbs > 0.0, "{part:?}");
        // A driver reports less than ECC, page tables and firmware leave of what is sold, never much more.
        let share = f64::from(part.driver_mib) / 1024.0 / f64::from(part.sold_gb);
        assert!((0.74..=1.001).contains(&share), "{}: {share}", part.name);
    }
}

#[test]
fn every_figure_has_a_source_or_is_marked_unverified() {
    for part in gpus() {
        let has_source =
            |column: &str| part.sources().any(|source| source.columns.split(' ').any(|name| name == column));
        let none = [("dense_8", part.dense_8), ("link_gbs", part.link_gbs)];
        for column in SOURCED {
            let is_none = none.iter().any(|(name, value)| *name == column && *value <= 0.0);
            assert!(is_none || has_source(column) || part.is_unverified(column), "{}: {column}", part.name);
        }
        assert!(part.measured_16.is_none() || has_source("measured_16"), "{}", part.name);
    }
    for source in gpu_sources() {
        assert!(gpus().iter().any(|part| part.name == source.name), "{source:?}");
    }
}

#[test]
fn the_table_has_the_parts_that_people_train_on() {
    for name in [
        "GTX 1080 Ti",
        "T4",
        "RTX 2080 Ti",
        "RTX 3060",
        "RTX 3090",
        "RTX 4060 Ti 16GB",
        "RTX 4090",
        "RTX 5090",
        "RTX PRO 6000",
        "A2",
        "A10",
        "A10G",
        "A16",
        "A30",
        "A40",
        "L4",
        "L40S",
        "V100 16GB",
        "V100 32GB",
        "GB10",
        "Jetson AGX Orin",
        "H20",
        "H800",
        "GB300",
        "MI210",
        "MI250X",
        "MI300X",
        "MI355X",
        "RX 7900 XTX",
    ] {
        assert!(gpu(name).is_some(), "{name}");
    }
    assert!(gpus().len() > 150 && cloud_machines().len() > 100);
}

#[test]
fn precisions_are_those_of_the_hardware() {
    let has = |name: &str, precision| gpu(name).expect("it is in the table").has_precision(precision);
    for old in ["V100", "T4", "RTX 2080 Ti", "GTX 1080 Ti", "P100"] {
        assert!(!has(old, Precision::Bf16) && has(old, Precision::F16), "{old}");
    }
    assert!(has("A100", Precision::Bf16) && !has("A100", Precision::Fp8));
    assert!(has("RTX 4090", Precision::Fp8) && has("H100", Precision::Fp8));
}
