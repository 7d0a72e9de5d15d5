//! Text of a device report for the terminal.

use super::columns::{left, right};
use super::series;
use crate::output::PageStyle;
use crate::render::number::{count, counted, seconds};
use crate::render::table::{StyledText, TableColumn, TextRole, table};
use dtrain_protocol::DeviceFindings;
use dtrain_protocol::device_check::{AttentionSpeed, KernelTuning, Parity, ProductSpeed, TrainingSpeed};
use dtrain_recipes::number_format;
use dtrain_recipes::{Bytes, Precision};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Formats all sections of a device report.
pub(super) fn page(found: &DeviceFindings, style: PageStyle) -> String {
    let mut page = head(found);
    let mut section = |title: &str, body: String| {
        if !body.is_empty() {
            _ = write!(page, "\n{}\n{body}", style.paint.bold(title));
        }
    };
    section("compared with the host", parity(&found.parity, style));
    section(&decoder(&found.training), training(&found.training, style));
    section("matrix products: operations a second", products(&found.products, style));
    section(&heads(&found.attention), attention(&found.attention, style));
    section("copies through the memory of the host", copies(found, style));
    if let Some(steps) = &found.steps {
        section(&series::title(steps), series::steps(steps, style));
    }
    section("NCCL with one rank", series::nccl(&found.nccl, style));
    let faults = found.faults.iter().map(|fault| format!("{}: {}\n", fault.part, fault.reason));
    section("failed", faults.collect());
    page
}

/// Formats the first lines of the report: the device and the versions of its software.
fn head(found: &DeviceFindings) -> String {
    let DeviceFindings { name, memory_bytes, burn, cubecl, .. } = found;
    let memory = match memory_bytes {
        0 => "memory unknown".to_owned(),
        bytes => format!("{} memory", Bytes(*bytes)),
    };
    let target = found.target.as_ref().map(|target| format!(", kernels for {target}"));
    let driver = found.driver.as_ref().map(|driver| format!(", driver {driver}"));
    let precisions: Vec<&str> = found.precisions.iter().map(|precision| precision.name()).collect();
    let tuning = found.tuning.as_ref().map_or_else(|| "kernels are not tuned".to_owned(), tuning);
    format!(
        "{name}, {memory}{}{}\nproducts in {}; dtrain {}, burn {burn}, cubecl {cubecl}; {tuning}\n",
        target.unwrap_or_default(),
        driver.unwrap_or_default(),
        precisions.join(", "),
        crate::this_host::PROGRAM,
    )
}

/// Formats the result of tuning the kernels of matrix products.
fn tuning(tuning: &KernelTuning) -> String {
    let KernelTuning { seconds, tuned, known, untuned, folder, .. } = tuning;
    let over = if *untuned == 0 { String::new() } else { format!(", {untuned} without, as time was over") };
    let place = folder.as_ref().map(|folder| format!("; kept in {folder}")).unwrap_or_default();
    format!("kernels tuned for {tuned} products in {seconds:.1} s, {known} known{over}{place}")
}

/// Describes a comparison of losses and gradients in which device and host differ.
pub(super) fn difference(parity: &Parity) -> String {
    format!(
        "{} in {}: losses differ by {} ({} allowed), the gradient of {} by {} ({} allowed)",
        parity.family,
        parity.precision.name(),
        share(parity.loss_difference),
        share(parity.loss_tolerance),
        parity.parameter,
        share(parity.gradient_difference),
        share(parity.gradient_tolerance)
    )
}

/// Formats a relative difference, such as `1.2e-5`; `not a number` for the largest value, which stands for
/// NaN.
fn share(value: f64) -> String {
    if value >= f64::MAX { "not a number".to_owned() } else { format!("{value:.1e}") }
}

fn parity(all: &[Parity], style: PageStyle) -> String {
    if all.is_empty() {
        return String::new();
    }
    let columns = [
        left("family"),
        left("products"),
        left(""),
        right("losses"),
        right("allowed"),
        right("gradients"),
        right("allowed"),
        right("first step"),
        right("later"),
        TableColumn { rank: 1, least: Some(8), ..left("most in") },
    ];
    let rows: Vec<Vec<StyledText>> = all
        .iter()
        .map(|parity| {
            let verdict = if parity.is_within() {
                StyledText::new("agrees", TextRole::Good)
            } else {
                StyledText::new("DIFFERS", TextRole::Bad)
            };
            vec![
                parity.family.clone().into(),
                parity.precision.name().into(),
                verdict,
                share(parity.loss_difference).into(),
                share(parity.loss_tolerance).into(),
                share(parity.gradient_difference).into(),
                share(parity.gradient_tolerance).into(),
                seconds(parity.first_step_seconds).into(),
                seconds(parity.step_seconds).into(),
                parity.parameter.clone().into(),
            ]
        })
        .collect();
    table(&columns, &rows, style)
}

/// Describes the decoder whose training speed was measured; empty without measurements.
fn decoder(all: &[TrainingSpeed]) -> String {
    let Some(TrainingSpeed { decoder, parameters, batch, .. }) = all.first() else { return String::new() };
    format!(
        "training of a llama: {} × {}, {} parameters, {} of {} tokens a step",
        counted(decoder.layers.into(), "layer"),
        decoder.hidden,
        number_format::parameters(*parameters),
        counted((*batch).into(), "sequence"),
        decoder.context
    )
}

fn training(all: &[TrainingSpeed], style: PageStyle) -> String {
    if all.is_empty() {
        return String::new();
    }
    let columns = [
        left("products"),
        right("tokens/s"),
        right("first step"),
        right("later"),
        right("memory at most"),
        right("held"),
    ];
    let bytes = |bytes: Option<u64>| bytes.map_or_else(String::new, |bytes| Bytes(bytes).to_string());
    let rows: Vec<Vec<StyledText>> = all
        .iter()
        .map(|speed| {
            vec![
                speed.precision.name().into(),
                count(speed.tokens_per_second).into(),
                seconds(speed.first_step_seconds).into(),
                seconds(speed.step_seconds).into(),
                bytes(speed.memory_peak_bytes).into(),
                bytes(speed.memory_reserved_bytes).into(),
            ]
        })
        .collect();
    table(&columns, &rows, style)
}

/// Formats the speed of matrix products: one row per size, one column per precision.
fn products(all: &[ProductSpeed], style: PageStyle) -> String {
    if all.is_empty() {
        return String::new();
    }
    let precisions = precisions(all);
    let cell = |size, precision| {
        let one = all.iter().find(|one| one.size == size && one.precision == precision);
        one.map_or_else(String::new, |one| format!("{}FLOP/s", count(one.gflops * 1e9)))
    };
    let mut columns = vec![right("matrices")];
    columns.extend(precisions.iter().map(|precision| right(precision.name())));
    let sizes: BTreeSet<u32> = all.iter().map(|one| one.size).collect();
    let row = |size: u32| {
        let cells = precisions.iter().map(|precision| cell(size, *precision).into());
        std::iter::once(format!("{size} × {size}").into()).chain(cells).collect()
    };
    let rows: Vec<Vec<StyledText>> = sizes.into_iter().map(row).collect();
    table(&columns, &rows, style)
}

fn heads(all: &[AttentionSpeed]) -> String {
    let Some(AttentionSpeed { heads, head_width, .. }) = all.first() else { return String::new() };
    format!("attention of {} of width {head_width}", counted((*heads).into(), "head"))
}

/// Formats the speed of attention: one row per length and precision, since columns would not fit 80
/// characters.
fn attention(all: &[AttentionSpeed], style: PageStyle) -> String {
    if all.is_empty() {
        return String::new();
    }
    let columns = [
        left("products"),
        right("sequence"),
        right("forward"),
        right("both ways"),
        right("operations a second"),
    ];
    let rows: Vec<Vec<StyledText>> = all
        .iter()
        .map(|one| {
            vec![
                one.precision.name().into(),
                counted(one.length.into(), "token").into(),
                seconds(one.forward_seconds).into(),
                seconds(one.both_seconds).into(),
                format!("{}FLOP/s", count(one.gflops * 1e9)).into(),
            ]
        })
        .collect();
    table(&columns, &rows, style)
}

/// Returns the precisions that occur in the measurements, in order, each once.
fn precisions(all: &[ProductSpeed]) -> Vec<Precision> {
    let mut found: Vec<_> = all.iter().map(|one| one.precision).collect();
    found.dedup();
    found
}

fn copies(found: &DeviceFindings, style: PageStyle) -> String {
    let speed = |speed: f64| format!("{}B/s", count(speed * 1e9));
    let mut rows: Vec<Vec<StyledText>> = Vec::new();
    for copy in &found.copies {
        let bytes = Bytes(copy.bytes).to_string();
        rows.push(vec!["host to device".into(), bytes.clone().into(), speed(copy.to_device).into()]);
        rows.push(vec!["device to host".into(), bytes.into(), speed(copy.to_host).into()]);
    }
    for link in &found.links {
        let way = format!("to device {}", link.to);
        rows.push(vec![way.into(), Bytes(link.bytes).to_string().into(), speed(link.speed).into()]);
    }
    if rows.is_empty() {
        return String::new();
    }
    table(&[left("way"), right("bytes"), right("speed")], &rows, style)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::color::ColorMode;
    use dtrain_protocol::DeviceKind;
    use dtrain_protocol::device_check::{CopySpeed, DeviceTest, LinkSpeed};

    /// Returns a device that agrees with the host.
    pub(in super::super) fn findings() -> DeviceFindings {
        let parity = Parity {
            family: "gpt".into(),
            precision: Precision::F32,
            losses: vec![6.0, 5.0],
            reference: vec![6.0, 5.0],
            loss_difference: 1e-6,
            gradient_difference: 2e-5,
            parameter: "head.weight".into(),
            loss_tolerance: 1e-3,
            gradient_tolerance: 1e-3,
            first_step_seconds: 3.0,
            step_seconds: 0.01,
        };
        let product = |size, precision| ProductSpeed { size, precision, seconds: 1e-3, gflops: 2500.0 };
        DeviceFindings {
            device: DeviceKind::Wgpu,
            index: 0,
            devices: 2,
            name: "a GPU".into(),
            target: Some("spirv".into()),
            driver: None,
            memory_bytes: 8 << 30,
            burn: "0.1".into(),
            cubecl: "0.2".into(),
            tuning: None,
            precisions: vec![Precision::F32, Precision::F16],
            parts: DeviceTest::USUAL.to_vec(),
            parity: vec![parity],
            training: Vec::new(),
            products: vec![
                product(256, Precision::F32),
                product(512, Precision::F32),
                product(256, Precision::F16),
            ],
            attention: vec![AttentionSpeed {
                length: 256,
                heads: 8,
                head_width: 64,
                precision: Precision::F32,
                forward_seconds: 1e-3,
                both_seconds: 4e-3,
                gflops: 100.0,
            }],
            copies: vec![CopySpeed { bytes: 1 << 20, to_device: 1.5, to_host: 2.5 }],
            links: vec![LinkSpeed { to: 1, bytes: 64 << 20, speed: 0.7 }],
            steps: None,
            nccl: Vec::new(),
            faults: Vec::new(),
        }
    }

    #[test]
    fn the_page_has_a_table_for_each_part_and_none_for_what_was_not_measured() {
        let style = PageStyle { paint: ColorMode::plain(), width: 120, is_ascii: false, now_ms: 0 };
        insta::assert_snapshot!(page(&findings(), style));
    }

    #[test]
    fn what_is_no_number_is_not_written_as_one() {
        assert_eq!(share(f64::MAX), "not a number");
        assert_eq!(share(1e-3), "1.0e-3");
    }
}
