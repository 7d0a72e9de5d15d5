//! Trade-offs: the chosen candidate beside the others on the Pareto front of time, memory and cost.

use crate::choice::pareto_front::notable_points;
use crate::price::candidate_cost::CandidateCost;
use crate::text::{amount, row};
use dtrain_recipes::number_format::thousands;
use dtrain_recipes::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

/// Trade-offs of a plan: the chosen candidate and the Pareto front over time, memory and cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tradeoffs<T> {
    /// The chosen candidate with its cost.
    pub choice: Tradeoff<T>,
    /// Points of the Pareto front, fastest first.
    pub pareto_front: Vec<Tradeoff<T>>,
    /// Indices into `pareto_front` of the points to show: those that differ enough from the choice and from
    /// each other.
    pub distinct: Vec<usize>,
}

/// A candidate with its cost, per step and for the whole training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tradeoff<T> {
    /// The candidate that has this cost.
    pub candidate: T,
    /// Cost of a training step with the candidate.
    pub cost: CandidateCost,
    /// Peak memory of the candidate's heaviest rank.
    pub memory_peak: Bytes,
    /// Number of devices that the candidate keeps busy: GPUs, or cores where CPUs train. Idle ones cost
    /// nothing.
    pub devices: u32,
    /// Device hours of the whole training; `None` where the number of steps is unknown.
    pub device_hours: Option<f64>,
    /// Price of the device hours; `None` where the recipe sets no price or the number of steps is unknown.
    pub money: Option<f64>,
}

/// Number of training steps and price of a device, from which the cost of the whole training follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CostBasis {
    /// Number of steps of the training; `None` where it is unknown.
    pub(crate) steps: Option<u64>,
    /// Price of a device hour; `None` where the recipe sets none.
    pub(crate) price: Option<f64>,
}

impl CostBasis {
    /// Returns `candidate` with its cost for the whole training, computed from the cost of a step.
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
    /// Combines the choice with a Pareto front; points that differ by less than `resolution` count as equal.
    pub(crate) fn of(choice: Tradeoff<T>, pareto_front: Vec<Tradeoff<T>>, resolution: f64) -> Self {
        let costs: Vec<CandidateCost> = pareto_front.iter().map(|point| point.cost).collect();
        let distinct = notable_points(&choice.cost, &costs, resolution);
        Self { choice, pareto_front, distinct }
    }

    /// Returns the choice, then the points of the Pareto front to show beside it.
    pub fn shown(&self) -> impl Iterator<Item = &Tradeoff<T>> {
        std::iter::once(&self.choice).chain(self.distinct.iter().map(|index| &self.pareto_front[*index]))
    }

    /// Appends the table of trade-offs to `text`: the choice and the points to show beside it; nothing if
    /// there are no such points. `device` is the word for one device, `words` describes a candidate.
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

/// Returns the title of the column for device time: hours of the whole training, or seconds of a step.
fn hours_title<T>(choice: &Tradeoff<T>, device: &str) -> String {
    let unit = if choice.device_hours.is_some() { "hours" } else { "seconds" };
    format!("{device} {unit}")
}

/// Formats the cells of one table row in columns; the price is left out where the choice has none.
fn line<T>([step, memory, devices, hours, money]: [String; 5], choice: &Tradeoff<T>) -> String {
    let money = if choice.money.is_some() { format!("  {money:>9}") } else { String::new() };
    format!("{step:<9} {memory:>9}  {devices:>6}  {hours:>12}{money}")
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
