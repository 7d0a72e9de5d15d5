//! Decisions for a whole training: learning rate, batch, number of steps, checkpoints and failures.

pub mod batch_size;
pub mod calendar;
pub mod checkpoint_interval;
pub mod decision;
mod fine_tuning_rate;
pub mod goodput;
pub mod learning_rate;
pub mod learning_rate_correction;
mod learning_rate_scaling;
pub mod mtbf;
mod published_pretrainings;
mod quantity;
pub(crate) mod step_count;
pub mod training_schedule;
pub mod validation;
