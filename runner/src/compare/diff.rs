//! Diff of the parameters, or of another set of named values, of several trials.

use crate::ledger::ValueSource;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// One parameter or property with its value in each trial.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValuePerTrial {
    /// Name of the parameter or property, such as `train.batch`.
    pub name: String,
    /// Value of each trial; `None` for a trial without one.
    pub values: Vec<Option<ComparedValue>>,
    /// True if the trials do not all have the same value.
    pub differs: bool,
}

/// Value of a parameter or property of one trial, for display.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedValue {
    /// The value as text.
    pub text: String,
    /// The value, if it is a number.
    pub number: Option<f64>,
    /// Origin of the value of a parameter; `None` for properties.
    pub source: Option<ValueSource>,
}

impl ValuePerTrial {
    /// Returns the last value divided by the first, if both are numbers and the first is not 0.
    pub fn ratio(&self) -> Option<f64> {
        let number = |cell: Option<&Option<ComparedValue>>| cell?.as_ref()?.number;
        let (first, last) = (number(self.values.first())?, number(self.values.last())?);
        (first != 0.0).then_some(last / first)
    }
}

/// Merges the named values of several trials into one row per name, sorted by name.
pub(super) fn diff(sides: Vec<BTreeMap<String, ComparedValue>>) -> Vec<ValuePerTrial> {
    let names: BTreeSet<_> = sides.iter().flat_map(BTreeMap::keys).cloned().collect();
    names
        .into_iter()
        .map(|name| {
            let values: Vec<_> = sides.iter().map(|side| side.get(&name).cloned()).collect();
            let text = |cell: &Option<ComparedValue>| cell.as_ref().map(|cell| cell.text.clone());
            let differs = values.windows(2).any(|pair| text(&pair[0]) != text(&pair[1]));
            ValuePerTrial { name, values, differs }
        })
        .collect()
}
