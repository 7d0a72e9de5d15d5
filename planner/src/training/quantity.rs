//! Numbers of parameters and tokens, as papers write them.

use dtrain_recipes::number_format::count;

/// Formats a number of parameters or tokens with three digits: `524 k`, `4.19 M`, `6.98 B`.
pub(super) fn quantity(number: f64) -> String {
    count(number).replace(" G", " B")
}
