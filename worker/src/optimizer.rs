//! Update rules.
