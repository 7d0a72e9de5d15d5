use super::*;

fn part(name: &str) -> String {
    let named = parse_gpu_name(name).unwrap_or_else(|error| panic!("{name}: {error:?}"));
    named.gpu.name.clone()
}

#[test]
fn names_are_read_as_people_and_tools_write_them() {
    for (name, expected) in [
        ("H100", "H100 SXM5 80GB"),
        ("h100", "H100 SXM5 80GB"),
        ("H-100", "H100 SXM5 80GB"),
        ("H100 SXM", "H100 SXM5 80GB"),
        ("H100-SXM-80GB", "H100 SXM5 80GB"),
        ("H100-SXM-96GB", "H100 SXM5 96GB"),
        ("H100 SXM5 80 GB", "H100 SXM5 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5 80GB"),
        ("NVIDIA H100 PCIe", "H100 PCIe 80GB"),
        ("H100 NVL", "H100 NVL 94GB"),
        ("NVIDIA H100 NVL", "H100 NVL 94GB"),
        ("H100-NVLink", "H100 SXM5 80GB"),
        ("H100 SXM5", "H100 SXM5 80GB"),
        ("H100-SXM5", "H100 SXM5 80GB"),
        ("NVIDIA H100 SXM5 GPU", "H100 SXM5 80GB"),
        ("H100-80G", "H100 SXM5 80GB"),
        ("H100 80 GPU", "H100 SXM5 80GB"),
        ("H100-SXM-96GB-HBM2e-500W", "H100 SXM5 96GB HBM2e"),
        ("DGX H100", "H100 SXM5 80GB"),
        ("H800", "H800 SXM5 80GB"),
        ("NVIDIA H20", "H20 96GB"),
        ("NVIDIA H200", "H200 SXM 141GB"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("GB200 NVL72", "GB200 186GB"),
        ("GB200-NVL72-186GB", "GB200 186GB"),
        ("A100 SXM4", "A100 SXM4 80GB"),
        ("A100 PCIe 40GB", "A100 PCIe 40GB"),
        ("A100-40G", "A100 SXM4 40GB"),
        ("V100 SXM2", "V100 SXM2 32GB"),
        ("V100-32G", "V100 SXM2 32GB"),
        ("B200", "B200 SXM 180GB"),
        ("A100 40GB", "A100 SXM4 40GB"),
        ("A100-40", "A100 SXM4 40GB"),
        ("A100 400W", "A100 SXM4 80GB"),
        ("A100-SXM4-40GB", "A100 SXM4 40GB"),
        ("A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2 16GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("RTX4090", "RTX 4090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("MI-300X", "MI300X"),
        ("Gaudi 3", "Gaudi 3"),
        ("Intel Gaudi2", "Gaudi 2"),
        ("TPU v5p", "TPU v5p"),
        ("TPU v5e", "TPU v5e"),
        ("TPU v4", "TPU v4"),
    ] {
        assert_eq!(part(name), expected, "{name}");
    }
    for gpu in gpus() {
        assert_eq!(part(&gpu.name), gpu.name, "the table's name of each GPU finds that GPU");
    }
}

#[test]
fn what_is_no_name_of_a_part_is_refused() {
    for name in [
        "H1000",
        "A1000",
        "B2000",
        "H10",
        "RTX A1000",
        "RTX 9999",
        "L400",
        "T40",
        "H100X",
        "H100 1x8 A100",
        "H100 A100",
        "H100 and A100",
        "not an H100",
        "not an H100 but a V100",
        "H100?",
        "H100 0",
        "A10 0",
        "H1 00",
        "A1024",
        "80GB",
        "",
        "SXM",
        "NVIDIA",
        "ähm H100",
    ] {
        assert!(
            matches!(parse_gpu_name(name), Err(GpuNameError::Unknown(_))),
            "{name}: {:?}",
            parse_gpu_name(name)
        );
    }
    let long = format!("H100 {}", "SXM ".repeat(10_000));
    assert_eq!(parse_gpu_name(&long).expect_err("it is refused"), GpuNameError::Unknown(None));
    let odd = |name| parse_gpu_name(name).expect_err("it is refused");
    assert_eq!(odd("foo H100"), GpuNameError::Unknown(Some("foo".into())));
    assert_eq!(odd("H100 1x8 A100"), GpuNameError::Unknown(Some("1x8".into())));
}

#[test]
fn a_size_of_memory_that_the_part_never_had_is_refused_and_another_one_counts() {
    assert_eq!(
        parse_gpu_name("H100-SXM-40GB").expect_err("it is refused"),
        GpuNameError::Memory(40, vec![64, 80, 96])
    );
    assert!(matches!(parse_gpu_name("L4 80GB"), Err(GpuNameError::Memory(80, _))));
    assert!(matches!(parse_gpu_name("H100 80GB 96GB"), Err(GpuNameError::Memory(96, _))));
    assert_eq!(part("GH200 480GB"), part("GH200"));
    assert!(matches!(parse_gpu_name("H200 PCIe"), Err(GpuNameError::Form(..))));
}

#[test]
fn a_power_limit_that_the_part_cannot_have_is_refused() {
    assert_eq!(parse_gpu_name("H100 500W").expect("a part").watts, Some(500.0));
    assert!(matches!(parse_gpu_name("H100 1W"), Err(GpuNameError::Power(..))));
    assert!(matches!(parse_gpu_name("H100 9000W"), Err(GpuNameError::Power(..))));
    assert!(matches!(parse_gpu_name("L40S 60W"), Err(GpuNameError::Power(..))));
}

#[derive(serde::Deserialize)]
struct DriverNames {
    name: String,
    driver_names: String,
}

#[test]
fn names_that_drivers_report_find_the_part_or_a_variant_of_it() {
    let rows: Vec<DriverNames> = super::super::gpu_spec::rows(include_str!("driver_names.csv"));
    let generation = |name: &str| parse_gpu_name(name).map(|named| named.gpu.generation.clone());
    let is_lost = |row: &DriverNames, driver: &str| generation(driver) != generation(&row.name);
    let names =
        rows.iter().flat_map(|row| row.driver_names.split(';').map(move |driver| (row, driver.trim())));
    let lost: Vec<_> =
        names.filter(|(row, driver)| is_lost(row, driver)).map(|(row, driver)| (&row.name, driver)).collect();
    assert!(lost.is_empty(), "{lost:?}");
}
