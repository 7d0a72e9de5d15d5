//! The models, as lists of units with one autodiff graph each.
