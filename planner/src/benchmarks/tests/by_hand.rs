//! Recomputes three published rows from the formulas of `docs/cost-model.md`, and compares them with the code
//! and with the printed tables. A change of a formula or constant must update all three.

mod arithmetic;
mod code;
mod gpt3_175b;
mod megatron_22b;
mod mpt_7b;
mod page;
mod published;

use arithmetic::Notes;

const MEGATRON_22B: &str = "korthikanti2022-0023";
const GPT3_175B: &str = "korthikanti2022-0027";
const MPT_7B: &str = "llm-foundry-0076";

#[test]
fn megatron_22b_by_hand_is_what_the_code_and_the_page_say() {
    check(MEGATRON_22B, &megatron_22b::notes());
}

#[test]
fn gpt3_175b_by_hand_is_what_the_code_and_the_page_say() {
    check(GPT3_175B, &gpt3_175b::notes());
}

#[test]
fn mpt_7b_by_hand_is_what_the_code_and_the_page_say() {
    check(MPT_7B, &mpt_7b::notes());
}

#[test]
fn a_value_that_is_off_by_one_in_its_last_digit_is_found() {
    let printed = page::value("7.4366 ms").expect("it is a number with its unit");
    assert!(printed.agrees(7.436_582_7e-3) && printed.agrees(7.436_649e-3));
    assert!(!printed.agrees(7.4367e-3) && !printed.agrees(7.4365e-3));
    assert!(page::value("-0.2 %").is_some_and(|printed| printed.agrees(-0.0019)));
    assert!(page::value("7.4366 furlongs").is_none());
}

fn check(id: &str, notes: &Notes) {
    let wrong = [against_code(id, notes), against_page(id, notes)].concat();
    assert!(wrong.is_empty(), "{id}:\n{}", wrong.join("\n"));
}

/// Lists the values that the code computes differently.
fn against_code(id: &str, notes: &Notes) -> Vec<String> {
    let code = code::values(&published::row(id));
    let other = |(name, hand): &(&'static str, f64)| match code.get(name) {
        None => Some(format!("`{name}` is not compared with the code")),
        Some(code) if (code - hand).abs() <= 1e-9 * hand.abs() => None,
        Some(code) => Some(format!("`{name}` by hand {hand:e}, by the code {code:e}")),
    };
    notes.0.iter().filter_map(other).collect()
}

/// Lists the values that the page prints differently, lacks, or has in excess.
fn against_page(id: &str, notes: &Notes) -> Vec<String> {
    let printed = page::table(id);
    let other = |(name, hand): &(&'static str, f64)| match printed.get(*name) {
        None => Some(format!("`{name}` is not on the page, or is no number with a unit")),
        Some(value) if value.agrees(*hand) => None,
        Some(value) => Some(format!("`{name}` by hand {hand:e}, on the page {value:?}")),
    };
    let unknown = |name: &String| {
        let is_noted = notes.0.iter().any(|(other, _)| other == name);
        (!is_noted).then(|| format!("`{name}` of the page was not computed by hand"))
    };
    notes.0.iter().filter_map(other).chain(printed.keys().filter_map(unknown)).collect()
}
