//! Recipes of trials, in which the layout is pinned and the training is short.

use crate::layout::candidate::Candidate;
use dtrain_recipes::{LayoutPins, Recipe, Samples, StopConditions, Tunable};

/// Returns the recipe with the layout of `candidate` pinned, so that trials differ only in the searched
/// values. The micro-batch and the precision stay open where the recipe tries more than one batch or
/// precision.
pub fn pinned_to_candidate(recipe: &Recipe, candidate: &Candidate) -> Recipe {
    let arrangement = &candidate.arrangement;
    let layout = &arrangement.layout;
    let is_open = matches!(recipe.train.batch, Tunable::Among(_) | Tunable::Log { .. });
    let mut settled = recipe.clone();
    settled.layout = LayoutPins {
        data: Some(layout.data.get()),
        tensor: Some(layout.tensor.get()),
        pipeline: Some(layout.pipeline.get()),
        context: Some(layout.context.get()),
        expert: Some(layout.expert.get()),
        zero: Some(arrangement.zero),
        micro_batch: (!is_open).then_some(candidate.split.micro()),
        recompute: Some(arrangement.recompute),
        recompute_every: Some(arrangement.recompute_every),
        schedule: Some(arrangement.schedule),
        chunks: Some(arrangement.chunks),
        sequence: Some(arrangement.sequence),
        shard: Some(arrangement.shard),
        shares: recipe.layout.shares.clone(),
    };
    settled.cluster.ranks = Some(layout.world());
    if recipe.train.precision == Tunable::Auto {
        settled.train.precision = Tunable::Pinned(arrangement.precision);
    }
    settled
}

/// Returns the recipe with training ended after `steps` optimizer steps. Warm-up and decay fit the shorter
/// run: a schedule that is cut off ranks learning rates wrongly.
pub fn limited_to_steps(recipe: &Recipe, steps: u64) -> Recipe {
    let mut short = recipe.clone();
    short.objective.stop = StopConditions { steps: Some(steps), ..StopConditions::default() };
    short
}

/// Returns the recipe with training ended after `samples` samples, so that trials of different batch sizes
/// get equal training.
pub fn limited_to_samples(recipe: &Recipe, samples: u64) -> Recipe {
    let mut short = recipe.clone();
    short.objective.stop = StopConditions { samples: Some(Samples(samples)), ..StopConditions::default() };
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn every_choice_of_a_plan_is_planned_again_when_it_is_settled() {
        let (recipe, host, rates) = (fixtures::recipe(), fixtures::host(8), fixtures::rates(8));
        let plan = |recipe: &Recipe| crate::plan(&fixtures::request(recipe, &host, Some(&rates)));
        let open = plan(&recipe).expect("it fits");
        for choice in &open.choices {
            let wanted = &choice.candidate;
            let found = plan(&pinned_to_candidate(&recipe, wanted))
                .unwrap_or_else(|error| panic!("{wanted}: {error}"));
            assert_eq!(found.best().candidate.arrangement, wanted.arrangement);
            assert_eq!(found.best().candidate.split, wanted.split);
        }
    }

    #[test]
    fn a_short_training_has_a_schedule_of_its_own() {
        let (recipe, host, rates) = (fixtures::recipe(), fixtures::host(2), fixtures::rates(2));
        let short = limited_to_steps(&recipe, 30);
        let plan = crate::plan(&fixtures::request(&short, &host, Some(&rates))).expect("it fits");
        assert_eq!((plan.best().run_length.steps, plan.best().run_length.schedule_steps), (Some(30), 30));
    }

    #[test]
    fn trials_of_all_batches_see_as_many_samples() {
        let (host, rates) = (fixtures::host(2), fixtures::rates(2));
        for batch in [8, 16, 64] {
            let mut short = limited_to_samples(&fixtures::recipe(), 640);
            short.train.batch = Tunable::Pinned(Samples(batch));
            let plan = crate::plan(&fixtures::request(&short, &host, Some(&rates))).expect("it fits");
            assert_eq!(plan.best().run_length.schedule_steps, 640 / batch);
        }
    }
}
