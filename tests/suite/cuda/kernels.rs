//! Kernels that are compiled by NVRTC, chosen among, and kept: on the stand-in driver, as users run the program.

use super::{Calls, Device, LEAST_KERNELS, LLAMA, STEPS, kernels, words};
use dtrain_tests::House;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// A table of chosen kernels.
#[derive(Debug, Deserialize)]
struct Table {
    products: BTreeMap<String, Choice>,
}

/// The kernel of one matrix product, and those that were tried.
#[derive(Debug, Deserialize)]
struct Choice {
    kernel: String,
    is_complete: bool,
    tried: Vec<Tried>,
}

#[derive(Debug, Deserialize)]
struct Tried {
    kernel: String,
    first_seconds: f64,
    error: Option<String>,
}

/// The files with the chosen kernels of a house.
fn tables(house: &House) -> Vec<PathBuf> {
    let entries = fs::read_dir(kernels(house)).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|ending| ending == "json")).collect()
}

/// The chosen kernels of a house, which has one kind of device.
fn table(house: &House) -> Table {
    let tables = tables(house);
    assert_eq!(tables.len(), 1, "one device: {tables:?}");
    serde_json::from_str(&fs::read_to_string(&tables[0]).expect("it is ours")).expect("JSON")
}

impl Device {
    /// Trains the tiny recipe, and chooses kernels for at most so many seconds; what the driver counted, and the log.
    fn tuned(&self, house: &House, settings: &[&str], seconds: u32) -> (Vec<Calls>, String) {
        let counts = house.file("counts", "");
        let mut command = self.command(house, "run", settings, STEPS[0]);
        let output = command
            .env("STAND_IN_COUNTS", &counts)
            .env("DTRAIN_TUNING_SECONDS", seconds.to_string())
            .output()
            .expect("the program starts");
        assert!(output.status.success(), "{command:?}: {}", words(&output));
        let lines = fs::read_to_string(&counts).expect("the file is ours");
        let output = house.dtrain(["logs"]).output().expect("the program starts");
        (
            lines.lines().map(|line| serde_json::from_str(line).expect("counts are JSON")).collect(),
            words(&output),
        )
    }
}

/// Ampere, Hopper and Blackwell, for which other instructions are compiled: every kernel of a training, and every candidate for its
/// matrix products. Prints how many of each kernel were compiled, how many failed and how, and the seconds.
#[test]
fn nvrtc_compiles_every_kernel_for_three_architectures() {
    for capability in [80, 90, 100] {
        let Some(device) = Device::new(capability) else { return };
        let house = House::default();
        let (calls, _) = device.tuned(&house, &LLAMA, 3000);
        let kernels = calls.iter().map(|calls| calls.kernels).max().unwrap_or(0);
        assert!(kernels > LEAST_KERNELS, "a training has more kernels than {kernels}");

        // By the name of a kernel: products, failures, and seconds until it was compiled and had run.
        let mut all = BTreeMap::<String, (u32, Vec<String>, f64)>::new();
        let table = table(&house);
        for (product, choice) in &table.products {
            assert!(choice.is_complete, "there was time for all: {product}: {choice:?}");
            assert!(!choice.kernel.is_empty(), "{product} has a kernel: {choice:?}");
            for tried in &choice.tried {
                let kernel = all.entry(tried.kernel.clone()).or_default();
                kernel.0 += 1;
                kernel.1.extend(tried.error.clone());
                kernel.2 += tried.first_seconds;
            }
        }
        let seconds: f64 = all.values().map(|(.., seconds)| seconds).sum();
        let failed: usize = all.values().map(|(_, errors, _)| errors.len()).sum();
        let tries: u32 = all.values().map(|(tries, ..)| tries).sum();
        println!(
            "sm_{capability}: {kernels} kernels loaded; {} products, {} candidates tried {tries} times, {failed} failures, {seconds:.1} s",
            table.products.len(),
            all.len()
        );
        for (name, (products, errors, seconds)) in &all {
            println!("  {name}: {products} products, {} failures, {seconds:.1} s", errors.len());
            errors.iter().take(1).for_each(|error| println!("    {error}"));
        }
        let has = |part: &str| all.keys().any(|name| name.contains(part));
        assert!(has("mma") && has("ordered") && has("specialized"), "tensor cores are tried: {all:?}");
        assert_eq!(has("tma"), capability >= 90, "the tensor memory accelerator came with Hopper: {all:?}");
    }
}

/// What one process compiles and chooses, the next one finds: it needs no compiler.
#[test]
fn a_second_process_compiles_and_chooses_nothing() {
    let Some(mut device) = Device::new(90) else { return };
    let house = House::default();
    let (first, told) = device.tuned(&house, &LLAMA, 60);
    assert!(told.contains("chooses kernels for matrix products for at most 60 s"), "{told}");
    let before =
        tables(&house).into_iter().map(|path| fs::read(path).expect("it is ours")).collect::<Vec<_>>();
    assert!(!table(&house).products.is_empty());

    fs::remove_file(device.driver.path().join("libnvrtc.so")).expect("it is ours");
    device.toolkit = device.driver.path().to_owned();
    let (second, told) = device.tuned(&house, &LLAMA, 60);
    assert!(!told.contains("chooses kernels"), "{told}");
    let after =
        tables(&house).into_iter().map(|path| fs::read(path).expect("it is ours")).collect::<Vec<_>>();
    assert_eq!(before, after, "nothing was chosen anew");
    let loaded = |calls: &[Calls]| calls.iter().map(|calls| calls.kernels).max().unwrap_or(0);
    println!("{} kernels loaded by the first run, {} by the second", loaded(&first), loaded(&second));
    assert!(loaded(&second) > LEAST_KERNELS, "they were loaded all the same");
}

/// A limit that is over at once leaves every product with a kernel, and the training ends well.
#[test]
fn a_short_limit_ends_the_choice_and_not_the_training() {
    let Some(device) = Device::new(80) else { return };
    let house = House::default();
    let (_, told) = device.tuned(&house, &LLAMA, 1);
    let table = table(&house);
    let tried: usize = table.products.values().map(|choice| choice.tried.len()).sum();
    let seconds: f64 =
        table.products.values().flat_map(|choice| &choice.tried).map(|one| one.first_seconds).sum();
    println!("{} products, {tried} candidates in {seconds:.1} s", table.products.len());
    assert!(table.products.values().any(|choice| !choice.is_complete), "{table:?}");
    assert!(told.contains("DTRAIN_TUNING_SECONDS sets the time"), "it is told: {told}");
}
