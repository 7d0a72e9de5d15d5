use super::*;
use crate::hardware::Assumption;

fn size(on: &str) -> Vec<(u32, u32)> {
    let machine =
        Machine::parse(on, None, &GpuFacts::default()).unwrap_or_else(|error| panic!("{on}: {error}"));
    machine.groups.iter().map(|group| (group.devices, group.per_host)).collect()
}

fn refused(on: &str) -> String {
    let MachineError { what, cause, hint } =
        Machine::parse(on, None, &GpuFacts::default()).expect_err("it is wrong");
    format!("{what}\n{}\n{hint}", cause.unwrap_or_default())
}

#[test]
fn blanks_may_stand_around_numbers() {
    for on in
        ["64x8 H100", "64 x 8 H100", " 64  ×8   H100 ", "64X8 H100-SXM-80GB", "64x 8H100", "64x8 H100 SXM5"]
    {
        assert_eq!(size(on), [(512, 8)], "{on}");
    }
    assert_eq!(size("2 x 8 H100 + 4x4 A100"), [(16, 8), (16, 4)]);
}

#[test]
fn wrong_sizes_are_named() {
    for (on, size) in
        [("-4x8 H100", "-4x8"), ("H100", "H100"), ("64 H100", "64"), ("0x8 H100", "0x8"), ("8xH100", "8x")]
    {
        let text = refused(on);
        assert!(text.contains(&format!("`{size}` is not a number of hosts")), "{on}: {text}");
    }
    for on in ["64x8", "", "64x8 H100 +"] {
        assert!(refused(on).contains("names no GPU type"), "{on}");
    }
    assert!(refused("1000000x1000000 H100").contains("too many GPUs"));
}

#[test]
fn a_name_is_read_whole() {
    let text = refused("1x8 H100 1x8 A100");
    assert!(text.contains("`1x8` is no part") && text.contains("join groups with `+`"), "{text}");
    let text = refused("1x8 not an H100 but a V100");
    assert!(text.contains("`not` is no part of the name of a GPU"), "{text}");
    for (on, near) in [("8x8 H1000", "H100"), ("8x8 A1000", "A100"), ("8x8 B2000", "B200")] {
        let text = refused(on);
        assert!(
            text.contains("unknown GPU type") && text.contains("did you mean") && text.contains(near),
            "{text}"
        );
    }
    assert!(refused("8x8 H100-SXM-40GB").contains("does not exist with 40 GB"));
    assert!(refused("8x8 H100 1W").contains("give 175 to 875 W"));
}

#[test]
fn the_nearest_types_are_suggested_and_all_only_where_none_is_near() {
    let text = refused("64x8 H10O");
    assert!(text.contains("unknown GPU type `H10O`") && text.contains("did you mean H100"), "{text}");
    assert!(!text.contains("GAUDI"), "{text}");
    assert!(refused("64x8 MI-3OO").contains("did you mean MI3"));
    let text = refused("64x8 Frobnicator");
    assert!(text.contains("cluster.gpu.memory") && !text.contains("did you mean"), "{text}");
}

fn on(text: &str, facts: &GpuFacts) -> HostGroup {
    Machine::parse(text, None, facts).unwrap_or_else(|error| panic!("{text}: {error}")).groups[0]
}

#[test]
fn machine_types_of_clouds_have_their_networks() {
    let group = on("4x p4d.24xlarge", &GpuFacts::default());
    assert_eq!((group.devices, group.per_host, group.gpu.name.as_str()), (32, 8, "A100 SXM4 40GB"));
    assert!((group.network.bandwidth - 400e9 / 8.0 / 8.0).abs() < 1.0, "400 Gbit/s for eight GPUs");
    assert!(Assumption::of(&[group]).is_empty(), "{:?}", Assumption::of(&[group]));
    assert_eq!(on("a3-highgpu-8g", &GpuFacts::default()).devices, 8);
    assert!(refused("0x p4d.24xlarge").contains("not a number of hosts"));
}

#[test]
fn what_data_sheets_do_not_have_is_stated_by_the_recipe() {
    let facts = GpuFacts {
        memory: Some(dtrain_recipes::Bytes(40 << 30)),
        tflops: Some(250.0),
        memory_bandwidth: Some(1400.0),
        link: Some(GpuLink::Nvswitch),
        link_bandwidth: Some(200.0),
        network: Some(80.0),
    };
    let group = on("2x8 Frobnicator 9", &facts);
    assert_eq!((group.part().as_str(), group.memory), ("Frobnicator 9", 40.0 * 1024f64.powi(3)));
    assert_eq!((group.gpu.dense_16, group.gpu.memory_gbs), (250.0, 1400.0));
    assert_eq!((group.link.bandwidth, group.network.bandwidth), (200e9, 10e9));
    assert!(Assumption::of(&[group]).is_empty(), "{:?}", Assumption::of(&[group]));
    let bridged = on("1x4 RTX A6000", &GpuFacts { link: Some(GpuLink::Bridge), ..GpuFacts::default() });
    assert!(bridged.pair.is_some_and(|pair| pair.bandwidth > bridged.link.bandwidth));
    let none = GpuFacts { link: Some(GpuLink::Bridge), ..GpuFacts::default() };
    assert!(Machine::parse("1x2 RTX 4090", None, &none).is_err_and(|error| error.what.contains("no NVLink")));
}

#[test]
fn assumptions_name_the_key_that_corrects_them() {
    let all = Assumption::of(&[on("2x8 RTX 4090", &GpuFacts::default())]);
    let correct: Vec<&str> = all.iter().map(|one| one.correct.as_str()).collect();
    assert_eq!(correct, ["cluster.gpu.link", "--network"]);
    assert!(all[0].what.contains("through host memory"), "{all:?}");
    assert!(Assumption::of(&[on("1x1 RTX 4090", &GpuFacts::default())]).is_empty());
}
