//! Measures the speeds of a model on this host.
