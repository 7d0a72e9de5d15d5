use super::*;

fn part(name: &str) -> String {
    let named = parse_gpu_name(name).unwrap_or_else(|error| panic!("{name}: {error:?}"));
    named.gpu.words.join(" ")
}

#[test]
fn names_are_read_as_people_and_tools_write_them() {
    for (name, expected) in [
        ("H100", "h100"),
        ("h100", "h100"),
        ("H-100", "h100"),
        ("H100 SXM", "h100"),
        ("H100-SXM-80GB", "h100"),
        ("H100-SXM-96GB", "h100"),
        ("H100 SXM5 80 GB", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100 pcie"),
        ("H100 NVL", "h100nvl"),
        ("NVIDIA H100 NVL", "h100nvl"),
        ("H100-NVLink", "h100"),
        ("H100 SXM5", "h100"),
        ("H100-SXM5", "h100"),
        ("NVIDIA H100 SXM5 GPU", "h100"),
        ("H100-80G", "h100"),
        ("H100 80 GPU", "h100"),
        ("H100-SXM-96GB-HBM2e-500W", "h100 hbm2e"),
        ("DGX H100", "h100"),
        ("H800", "h800"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("GB200 NVL72", "gb200"),
        ("GB200-NVL72-186GB", "gb200"),
        ("A100 SXM4", "a100"),
        ("A100-SXM4-HBM2e", "a100"),
        ("A100-40G", "a100 40"),
        ("V100 SXM2", "v100"),
        ("V100-32G", "v100"),
        ("B200", "b200"),
        ("A100 40GB", "a100 40"),
        ("A100-40", "a100 40"),
        ("A100 400W", "a100"),
        ("A100-SXM4-40GB", "a100 40"),
        ("A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100 pcie"),
        ("NVIDIA A100-PCIE-40GB", "a100 pcie"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla T4", "t4"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA GeForce RTX 4090", "4090"),
        ("RTX4090", "4090"),
        ("AMD Instinct MI300X", "mi300"),
        ("MI-300X", "mi300"),
        ("Gaudi 3", "gaudi3"),
        ("Intel Gaudi2", "gaudi2"),
        ("TPU v5p", "tpu v5p"),
        ("TPU v5e", "tpu v5"),
        ("TPU v4", "tpu v4"),
    ] {
        assert_eq!(part(name), expected, "{name}");
    }
    // The table's words of each GPU find that GPU.
    for gpu in gpus() {
        assert_eq!(part(&gpu.words.join(" ")), gpu.words.join(" "));
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
        GpuNameError::Memory(40, vec![80, 96])
    );
    assert!(matches!(parse_gpu_name("L4 80GB"), Err(GpuNameError::Memory(80, _))));
    assert!(matches!(parse_gpu_name("H100 80GB 96GB"), Err(GpuNameError::Memory(96, _))));
    let gib = |name: &str| parse_gpu_name(name).expect("a part").memory / 1024f64.powi(3);
    assert_eq!((gib("V100"), gib("V100-SXM2-16GB")), (32.0, 16.0));
    assert_eq!((gib("A100 PCIe"), gib("A100-PCIE-40GB")), (80.0, 40.0));
    assert_eq!(gib("GH200 480GB"), gib("GH200"));
}

#[test]
fn a_power_limit_that_the_part_cannot_have_is_refused() {
    assert_eq!(parse_gpu_name("H100 500W").expect("a part").watts, Some(500.0));
    assert!(matches!(parse_gpu_name("H100 1W"), Err(GpuNameError::Power(..))));
    assert!(matches!(parse_gpu_name("H100 9000W"), Err(GpuNameError::Power(..))));
    assert_eq!(parse_gpu_name("L40S 200W").expect_err("it is refused"), GpuNameError::NoPower);
}
