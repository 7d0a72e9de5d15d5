//! The GPU of a row.

use super::cells::Row;
use crate::analytic::names::{NameError, Named, named};

/// The GPU that a row names; `None` where the cell is blank. A name that is not understood whole is an error.
pub(super) fn part(row: &Row) -> Result<Option<Named>, String> {
    match row.text("hardware") {
        "" => Ok(None),
        name => named(name).map(Some).map_err(|error| format!("`hardware` is `{name}`: {}", reason(&error))),
    }
}

fn reason(error: &NameError) -> String {
    match error {
        NameError::Unknown(Some(word)) => format!("`{word}` is not understood"),
        NameError::Unknown(None) => {
            "no GPU is known by this name; leave the cell blank for an average one".to_owned()
        }
        NameError::Memory(size, sold) => {
            let sold: Vec<String> = sold.iter().map(u32::to_string).collect();
            format!("it has {} GB of memory, not {size}", sold.join(" or "))
        }
        NameError::NoPower => "its usual power limit is not known, so none can be given".to_owned(),
        NameError::Power(watts, low, high) => {
            format!("its power limit is between {low:.0} W and {high:.0} W, not {watts} W")
        }
    }
}
