//! Kernels that are compiled by NVRTC, chosen among, and kept: on the stand-in driver, as users run the program.

use super::{Calls, Device, LEAST_KERNELS, LLAMA, STEPS, kernels, words};
use dtrain_tests::{TestEnv, is_named};
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
fn tables(house: &TestEnv) -> Vec<PathBuf> {
    let entries = fs::read_dir(kernels(house)).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|ending| ending == "json")).collect()
}

/// The chosen kernels of a house, which has one kind of device.
fn table(house: &TestEnv) -> Table {
    let tables = tables(house);
    assert_eq!(tables.len(), 1, "one device: {tables:?}");
    serde_json::from_str(&fs::read_to_string(&tables[0]).expect("it is ours")).expect("JSON")
}

impl Device {
    /// Trains the tiny recipe, and chooses kernels for at most so many seconds; what the driver counted, and the log.
    fn tuned(&self, house: &TestEnv, settings: &[&str], seconds: &str) -> (Vec<Calls>, String) {
        let counts = house.file("counts", "");
        let mut command = self.command(house, "run", settings, STEPS[0]);
        let output = command
            .env("STAND_IN_COUNTS", &counts)
            .env("DTRAIN_TUNING_SECONDS", seconds)
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

/// Seconds for choosing kernels, and how many of them one product may take: enough for all candidates of the first product.
const ALL_OF_ONE: &str = "100/90";

/// Compiles every kernel of a training run for Hopper, and with `tests/run nvrtc` for Ampere and Blackwell too, which
/// differ in instructions; then it also prints every candidate of a matrix product, with its time or its error.
#[test]
fn nvrtc_compiles_every_kernel_for_an_architecture() {
    let is_whole = is_named("nvrtc");
    for capability in if is_whole { vec![80, 90, 100] } else { vec![90] } {
        let Some(device) = Device::new(capability) else { return };
        let (calls, _) = device.tuned(&TestEnv::default(), &LLAMA, "0");
        let kernels = calls.iter().map(|calls| calls.kernels).max().unwrap_or(0);
        println!("sm_{capability}: {kernels} kernels of a training");
        assert!(kernels > LEAST_KERNELS, "a training has more kernels than {kernels}");
        if is_whole {
            println!("{}", candidates(&device));
        }
    }
}

/// What became of each candidate for the first matrix product of a training.
fn candidates(device: &Device) -> String {
    let house = TestEnv::default();
    device.tuned(&house, &LLAMA, ALL_OF_ONE);
    let table = table(&house);
    let most = table.products.iter().max_by_key(|(_, choice)| choice.tried.len());
    let (product, choice) = most.expect("a training has matrix products");
    assert!(choice.is_complete && !choice.kernel.is_empty(), "there was time for all: {product}: {choice:?}");
    let has = |part: &str| choice.tried.iter().any(|tried| tried.kernel.contains(part));
    assert!(has("mma") && has("ordered") && has("specialized"), "tensor cores are tried: {choice:?}");
    let is_hopper = device.capability >= 90;
    assert_eq!(has("tma"), is_hopper, "the tensor memory accelerator came with Hopper: {choice:?}");
    let failed = choice.tried.iter().filter(|tried| tried.error.is_some()).count();
    let seconds: f64 = choice.tried.iter().map(|tried| tried.first_seconds).sum();
    let lines = choice.tried.iter().map(|Tried { kernel, first_seconds, error }| {
        format!("\n  {kernel:<24} {first_seconds:6.1} s  {}", error.as_deref().unwrap_or("compiled"))
    });
    let count = choice.tried.len();
    let head = format!("{count} candidates for {product}, {failed} failures, {seconds:.1} s");
    format!("sm_{}: {head}{}", device.capability, lines.collect::<String>())
}

/// Seconds for choosing kernels that last for every product of a training, of which each takes the first kernel that works.
const ONE_OF_EACH: &str = "300/0.001";

/// What one process compiles and chooses, the next one finds: it needs no compiler.
#[test]
fn a_second_process_compiles_and_chooses_nothing() {
    let Some(mut device) = Device::new(90) else { return };
    let house = TestEnv::default();
    assert!(tables(&house).is_empty(), "nothing was chosen before");
    let (first, _) = device.tuned(&house, &LLAMA, ONE_OF_EACH);
    let before =
        tables(&house).into_iter().map(|path| fs::read(path).expect("it is ours")).collect::<Vec<_>>();
    assert!(!table(&house).products.is_empty());

    fs::remove_file(device.driver.path().join("libnvrtc.so")).expect("it is ours");
    device.toolkit = device.driver.path().to_owned();
    let (second, told) = device.tuned(&house, &LLAMA, ONE_OF_EACH);
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
    let house = TestEnv::default();
    let (_, told) = device.tuned(&house, &LLAMA, "1");
    let table = table(&house);
    let tried: usize = table.products.values().map(|choice| choice.tried.len()).sum();
    let seconds: f64 =
        table.products.values().flat_map(|choice| &choice.tried).map(|one| one.first_seconds).sum();
    println!("{} products, {tried} candidates in {seconds:.1} s", table.products.len());
    assert!(table.products.values().any(|choice| !choice.is_complete), "{table:?}");
    for words in
        ["chooses kernels for matrix products for at most 1 s", "DTRAIN_TUNING_SECONDS sets the time"]
    {
        assert!(told.contains(words), "{words} is in the log: {told}");
    }
}
