//! What makes a training of a step: learning rate, batch, pace, checkpoints, failures.

pub mod batch_size;
pub mod continued;
pub mod correction;
pub mod goodput;
pub mod learning_rate;
pub mod pace;
pub mod validation;
pub mod when;
