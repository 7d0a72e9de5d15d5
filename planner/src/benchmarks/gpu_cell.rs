//! The GPU that a row of a table names.

use super::table::TableRow;
use crate::hardware::gpu_names::{GpuNameError, ParsedGpuName, parse_gpu_name};

/// Parses the GPU that a row names; `None` if the cell is blank. A name that is not fully understood is an
/// error.
pub(super) fn gpu_of(row: &TableRow) -> Result<Option<ParsedGpuName>, String> {
    match row.text("hardware") {
        "" => Ok(None),
        name => parse_gpu_name(name)
            .map(Some)
            .map_err(|error| format!("`hardware` is `{name}`: {}", reason(&error))),
    }
}

fn reason(error: &GpuNameError) -> String {
    match error {
        GpuNameError::Unknown(Some(word)) => format!("`{word}` is not understood"),
        GpuNameError::Unknown(None) => {
            "no GPU is known by this name; leave the cell blank for an average one".to_owned()
        }
        GpuNameError::Memory(size, sold) => {
            let sold: Vec<String> = sold.iter().map(u32::to_string).collect();
            format!("it has {} GB of memory, not {size}", sold.join(" or "))
        }
        GpuNameError::Form(form, known) => {
            format!("it does not exist as `{form}`; known are {}", known.join(", "))
        }
        GpuNameError::NoPower => "its usual power limit is not known, so none can be given".to_owned(),
        GpuNameError::Power(watts, low, high) => {
            format!("its power limit is between {low:.0} W and {high:.0} W, not {watts} W")
        }
    }
}
