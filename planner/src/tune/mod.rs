//! Hyperparameter search: proposes the next trial of a study from the events so far.
//!
//! A [`Study`] defines the values that are searched and the method. [`Study::next`] and
//! [`Study::prune_decision`] are pure functions of the event log: the same log gives exactly the same
//! proposal, so a study that was killed resumes as if it had not been interrupted. [`StudySolver`] is the
//! study as a solver of argmin. Nothing here trains or stores anything: an implementation of [`TrialRunner`]
//! runs the trials, and the ledger stores the events.
//!
//! A sampler is a variant of [`Sampler`] and a file in `samplers`, a pruner one of [`Pruner`] and a file in
//! `pruners`; they share a [`SearchSpace`], whose dimensions map to the unit cube, and a [`StudyState`],
//! built from the log.

pub mod acquisition;
pub mod ask;
pub mod event;
pub mod gaussian_process;
pub mod importance;
pub mod kernel;
pub mod kernel_fit;
pub mod learning_rate_range;
pub mod local_search;
pub mod observations;
pub mod optima;
pub mod outcome;
mod params;
pub mod pruner;
mod pruners;
pub mod recipe_space;
pub mod recommend;
pub mod rng;
pub mod sampler;
mod samplers;
pub mod scale;
pub mod significance;
pub mod sobol;
pub mod solver;
pub mod space;
pub mod study;
pub mod study_state;
pub mod study_trial;
pub mod surrogate;
pub mod trial_recipe;
pub mod value;

pub use ask::{FinishReason, SlotAction};
pub use event::{Proposal, ProposalSource, PruneDecision, StudyEvent};
pub use importance::importance;
pub use optima::{Optimum, optima};
pub use outcome::{TrialFailure, TrialOutcome, TrialResult};
pub use pruner::{Asha, Hyperband, Median, Pruner, Threshold};
pub use recipe_space::RecipeSearchSpace;
pub use recommend::Recommendation;
pub use sampler::Sampler;
pub use scale::{Dimension, Scale};
pub use significance::{BetterSetting, PairedTest};
pub use solver::{StudySolver, TrialRunner};
pub use space::SearchSpace;
pub use study::Study;
pub use study_state::StudyState;
pub use study_trial::TrialPhase;
pub use trial_recipe::{limited_to_samples, limited_to_steps, pinned_to_candidate};
pub use value::TrialValue;

#[cfg(test)]
mod tests;
