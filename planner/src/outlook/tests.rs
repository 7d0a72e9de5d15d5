use super::*;
use crate::analytic::hardware::gpu;
use crate::analytic::search::Axis;
use crate::sample;
use dtrain_recipes::{Cnn, Samples};

/// A Llama of 8 billion parameters.
fn recipe() -> Recipe {
    let mut recipe = sample::recipe();
    recipe.name = "llama-8b".into();
    let Model::Decoder(decoder) = &mut recipe.model else { panic!("the sample is a decoder") };
    *decoder = Decoder {
        layers: 32,
        hidden: 4096,
        heads: 32,
        kv_heads: 8,
        ffn: 14336,
        vocab: 128_256,
        context: 8192,
        activation: Activation::Swiglu,
        tied: false,
        bias: false,
        ..*decoder
    };
    recipe.train.batch = Wanted::Pinned(Samples(128));
    recipe
}

fn on(part: &str, devices: u32) -> Cluster {
    let gpu = gpu(part).expect("it is in the table");
    Cluster { devices, ..Cluster::of(gpu, 1, 8.min(devices)) }
}

fn of(recipe: &Recipe, cluster: Cluster, style: Style) -> Result<Outlook, OutlookError> {
    outlook(&OutlookRequest { recipe, cluster, style })
}

#[test]
fn an_outlook_reads_as_ever() {
    let found = of(&recipe(), on("H100", 64), Style::Modern).expect("it fits");
    insta::assert_snapshot!("llama_8b_on_64_h100", explain(&found));
}

#[test]
fn seconds_and_bytes_are_the_sums_of_their_parts() {
    let found = of(&recipe(), on("H100", 64), Style::Fsdp).expect("it fits");
    for priced in found.ties.iter().chain(&found.next).chain([&found.choice]) {
        let seconds: f64 = priced.causes.iter().map(|(_, seconds)| seconds).sum();
        let bytes: f64 = priced.bytes.iter().map(|(_, bytes)| bytes).sum();
        assert!((seconds / priced.step_seconds - 1.0).abs() < 1e-12, "{priced:?}");
        assert!((bytes / priced.peak_bytes - 1.0).abs() < 1e-12, "{priced:?}");
        assert!(priced.causes.iter().all(|(_, seconds)| *seconds >= 0.0), "{priced:?}");
        assert!(
            priced.step_seconds_low < priced.step_seconds && priced.step_seconds < priced.step_seconds_high
        );
    }
}

#[test]
fn what_loses_is_not_faster_than_the_fastest_and_says_why() {
    let found = of(&recipe(), on("H100", 64), Style::Modern).expect("it fits");
    let fastest = found.ties.iter().map(|tie| tie.step_seconds).fold(found.choice.step_seconds, f64::min);
    assert!(found.choice.step_seconds <= (1.0 + TIE) * fastest);
    assert!(found.losers.iter().all(|loser| loser.step_seconds >= fastest), "{:?}", found.losers);
    let tensor =
        found.losers.iter().find(|loser| (loser.axis, loser.value.as_str()) == (Axis::Tensor, "tensor 32"));
    let tensor = tensor.expect("it fits, and loses");
    assert_eq!(tensor.cause.0, "tensor parallel", "{tensor:?}");
    assert!(!found.losers.iter().any(|loser| loser.axis == Axis::Data && loser.value == format!("data {}", found.choice.cut.data)));
}

#[test]
fn more_devices_take_less_time_and_more_hours() {
    let (few, many) = (on("H100", 64), on("H100", 512));
    let mut recipe = recipe();
    recipe.train.batch = Wanted::Pinned(Samples(1024));
    let (few, many) =
        (of(&recipe, few, Style::Modern).expect("fits"), of(&recipe, many, Style::Modern).expect("fits"));
    assert!(many.choice.step_seconds < few.choice.step_seconds);
    assert!(many.device_hours.expect("steps are counted") > few.device_hours.expect("steps are counted"));
}

#[test]
fn what_cannot_be_priced_is_refused_with_its_reason() {
    let message =
        |recipe: &Recipe, cluster| of(recipe, cluster, Style::Modern).expect_err("refused").to_string();
    let mut small = on("H100", 8);
    small.memory = 4e9;
    assert!(message(&recipe(), small).contains("GiB"), "{}", message(&recipe(), small));
    assert!(message(&recipe(), on("H100", 8 * 37)).contains("must divide"));
    let mut open = recipe();
    open.train.batch = Wanted::Auto;
    open.objective.stop =
        dtrain_recipes::Stop { time: Some(dtrain_recipes::Seconds(60.0)), ..Default::default() };
    assert!(message(&open, on("H100", 8)).contains("train.batch"));
    let mut image = recipe();
    image.model =
        Model::Cnn(Cnn { channels: 3, height: 8, width: 8, stages: vec![8], blocks: 1, classes: 2 });
    assert!(message(&image, on("H100", 8)).contains("cnn"));
    let mut pinned = recipe();
    pinned.layout.shard = Some(4);
    assert!(message(&pinned, on("H100", 8)).contains("layout.shard"));
}

#[test]
fn advice_is_what_a_search_with_the_change_finds() {
    let cluster = on("A100-40GB", 32);
    let mut slow = cluster;
    slow.network /= 16.0;
    let found = of(&recipe(), slow, Style::Modern).expect("it fits");
    let speed = |outlook: &Outlook| {
        let fastest = outlook.ties.iter().map(|tie| tie.step_seconds);
        128.0 / fastest.fold(outlook.choice.step_seconds, f64::min)
    };
    let twice =
        of(&recipe(), Cluster { network: 2.0 * slow.network, ..slow }, Style::Modern).expect("it fits");
    let advice = found.advice.iter().find(|advice| advice.change.contains("network")).expect("it is asked");
    assert!((advice.speed - (speed(&twice) / speed(&found) - 1.0)).abs() < 1e-9, "{advice:?}");
    assert!(advice.speed > 0.05, "a slow network is worth a change: {advice:?}");
    assert!(found.advice.windows(2).all(|pair| pair[0].speed >= pair[1].speed), "{:?}", found.advice);
    assert!(found.advice.iter().all(|advice| advice.speed > -0.5), "{:?}", found.advice);
}
