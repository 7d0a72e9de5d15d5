//! What a choice takes, and what could be taken in its place: the front of time, memory and money.

use crate::choice::explain::row;
use crate::choice::pareto_front::{CandidateCost, notable_points};
use dtrain_recipes::number_format::thousands;
use dtrain_recipes::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

/// A choice beside everything that nothing betters in time, memory and money at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tradeoffs<T> {
    /// The choice.
    pub choice: Tradeoff<T>,
    /// What nothing betters, fastest first.
    pub pareto_front: Vec<Tradeoff<T>>,
    /// Indices of those of the front that differ enough from the choice, and from each other, to be worth naming.
    pub distinct: Vec<usize>,
}

/// A way to train, and what it takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tradeoff<T> {
    /// The way.
    pub candidate: T,
    /// What a step takes.
    pub cost: CandidateCost,
    /// Bytes of the heaviest rank at its peak.
    pub memory_peak: Bytes,
    /// Devices that work: GPUs, or cores where CPUs train. Others stay idle, and cost nothing.
    pub devices: u32,
    /// Hours of these devices together in the whole training; `None` where nothing counts its steps.
    pub device_hours: Option<f64>,
    /// Money for these hours; `None` where the recipe names no price.
    pub money: Option<f64>,
}

/// How long a training is, and what a device costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CostBasis {
    /// Steps, where they are counted.
    pub(crate) steps: Option<u64>,
    /// Money for an hour of a device.
    pub(crate) price: Option<f64>,
}

impl CostBasis {
    /// What a way to train takes whose step costs `cost`.
    pub(crate) fn tradeoff<T>(
        &self,
        candidate: T,
        cost: CandidateCost,
        memory_peak: Bytes,
        devices: u32,
    ) -> Tradeoff<T> {
        #[expect(clippy::cast_precision_loss, reason = "steps are far below 2^52")]
        let device_hours = self.steps.map(|steps| steps as f64 * cost.device_seconds / 3600.0);
        let money = device_hours.zip(self.price).map(|(hours, price)| hours * price);
        Tradeoff { candidate, cost, memory_peak, devices, device_hours, money }
    }
}

impl<T> Tradeoffs<T> {
    /// A choice beside a front; what differs by less than `resolution` cannot be told apart.
    pub(crate) fn of(choice: Tradeoff<T>, pareto_front: Vec<Tradeoff<T>>, resolution: f64) -> Self {
        let costs: Vec<CandidateCost> = pareto_front.iter().map(|point| point.cost).collect();
        let distinct = notable_points(&choice.cost, &costs, resolution);
        Self { choice, pareto_front, distinct }
    }

    /// The choice first, then what is worth naming beside it.
    pub fn shown(&self) -> impl Iterator<Item = &Tradeoff<T>> {
        std::iter::once(&self.choice).chain(self.distinct.iter().map(|index| &self.pareto_front[*index]))
    }

    /// Adds the table of the choice and what is worth naming beside it; nothing where that is nothing. `device` is the word
    /// for one, `words` says a way to train.
    pub(crate) fn write_table(&self, text: &mut String, device: &str, words: impl Fn(&T) -> String) {
        if self.distinct.is_empty() {
            return;
        }
        text.push('\n');
        let all = thousands(self.pareto_front.len() as u64);
        let told = format!("{all} configurations are Pareto-optimal in time, memory and money");
        row(text, "trade-offs", &told);
        let titles = ["step", "memory", &format!("{device}s"), &hours_title(&self.choice, device), "money"];
        row(text, "", line(titles.map(str::to_owned), &self.choice).trim_end());
        for (place, point) in self.shown().enumerate() {
            let cells = [
                Seconds(point.cost.step_seconds).to_string(),
                point.memory_peak.to_string(),
                thousands(point.devices.into()),
                amount(point.device_hours.unwrap_or(point.cost.device_seconds)),
                point.money.map_or_else(String::new, amount),
            ];
            let key = if place == 0 { "the choice" } else { "" };
            row(text, key, &format!("{}  {}", line(cells, &self.choice), words(&point.candidate)));
        }
    }
}

/// What is counted of devices: their hours in the whole training, or their seconds in a step.
fn hours_title<T>(choice: &Tradeoff<T>, device: &str) -> String {
    let unit = if choice.device_hours.is_some() { "hours" } else { "seconds" };
    format!("{device} {unit}")
}

/// Cells in columns; money is left out where the choice has none.
fn line<T>([step, memory, devices, hours, money]: [String; 5], choice: &Tradeoff<T>) -> String {
    let money = if choice.money.is_some() { format!("  {money:>9}") } else { String::new() };
    format!("{step:<9} {memory:>9}  {devices:>6}  {hours:>12}{money}")
}

/// A sum of money, or of hours: `1,234`, `12.34`, `0.0123`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 1,000 and 1e15")]
pub fn amount(value: f64) -> String {
    match value {
        many if (1e3..1e15).contains(&many) => thousands(many.round() as u64),
        some if (0.1..1e3).contains(&some) => format!("{some:.2}"),
        other => format!("{other:.3e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost_basis(price: Option<f64>) -> CostBasis {
        CostBasis { steps: Some(3600), price }
    }

    fn weighed(price: Option<f64>) -> Tradeoffs<&'static str> {
        let of = |what, step, full, devices| {
            let bytes = Bytes(if full > 0.4 { 6 << 30 } else { 2 << 30 });
            cost_basis(price).tradeoff(what, CandidateCost::of(step, full, devices), bytes, devices)
        };
        let choice = of("four", 1.0, 0.6, 4);
        Tradeoffs::of(choice.clone(), vec![choice, of("one", 3.0, 0.3, 1)], 0.02)
    }

    #[test]
    fn hours_are_those_of_all_devices_and_money_is_their_price() {
        let weighed = weighed(Some(2.5));
        assert_eq!((weighed.choice.device_hours, weighed.choice.money), (Some(4.0), Some(10.0)));
        assert_eq!(weighed.pareto_front[1].money, Some(7.5));
        let endless = CostBasis { steps: None, price: Some(2.5) };
        let point = endless.tradeoff((), CandidateCost::of(1.0, 0.5, 4), Bytes(1), 4);
        assert_eq!((point.device_hours, point.money), (None, None));
    }

    #[test]
    fn the_choice_stands_first_and_money_only_where_there_is_a_price() {
        let told = |price| {
            let mut text = String::new();
            weighed(price).write_table(&mut text, "GPU", |what| (*what).to_owned());
            text
        };
        insta::assert_snapshot!([told(Some(2.5)), told(None)].join(""));
    }
}
