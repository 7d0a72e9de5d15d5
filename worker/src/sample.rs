//! Writes text with a trained decoder.
