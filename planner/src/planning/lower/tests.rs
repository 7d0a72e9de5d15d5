use super::*;
use crate::fixtures;
use crate::planning::plan;
use crate::planning::plan::PlanRequest;
use dtrain_protocol::Action;
use dtrain_recipes::{Goal, Metric, Recipe, Seconds, StopConditions};

fn planned(change: impl FnOnce(&mut Recipe)) -> Plan {
    let (mut recipe, host, rates) = (fixtures::recipe(), fixtures::host(4), fixtures::rates(4));
    // Only replicas and stages are compared: ranks of one matrix or one sequence get equal assignments.
    recipe.layout.tensor = Some(1);
    recipe.layout.context = Some(1);
    change(&mut recipe);
    plan(&PlanRequest { train_samples: Some(5_000), ..fixtures::request(&recipe, &host, Some(&rates)) })
        .expect("the sample fits")
}

fn launch() -> AttemptSpec {
    AttemptSpec {
        trial: TrialId("01JD0000000000000000000000".into()),
        attempt: AttemptId(2),
        checkpoints: "/state/checkpoints".into(),
        resume: None,
        spent_seconds: 12.5,
    }
}

#[test]
fn every_rank_is_told_everything_and_the_shares_make_the_batch() {
    for replicas in [1, 2, 4] {
        let plan = planned(|recipe| recipe.layout.data = Some(replicas));
        let all = lower(&plan, plan.best(), &launch());
        assert_eq!(all.len(), replicas as usize);
        let mut seen = Vec::new();
        for (rank, assignment) in (0..replicas).zip(&all) {
            let training = &assignment.training;
            assert_eq!(assignment.rank, Rank(rank));
            assert_eq!(assignment.placement.index, rank);
            let step = plan.best().price().step.0;
            assert_eq!(assignment.waits, WaitLimits::for_steps_of(Some(step)));
            assert_eq!(assignment.chunks, std::slice::from_ref(&(0..4)));
            assert_eq!(assignment.data_root, PathBuf::from("/data"));
            assert_eq!(assignment.until.seconds, None, "only steps end it");
            let forwards = assignment.step.iter().filter(|action| matches!(action, Action::Forward(_)));
            assert_eq!(forwards.count(), training.micro_batches as usize);
            let share = training.share.clone();
            let each = u64::from(training.micro_batch) * u64::from(training.micro_batches);
            assert_eq!(share.end - share.start, each);
            seen.extend(share);
        }
        assert_eq!(seen, (0..32).collect::<Vec<_>>(), "every sample of the step once");
    }
}

#[test]
fn uneven_replicas_get_their_shares_and_steps_of_their_own_length() {
    let plan = planned(|recipe| {
        recipe.layout.shares = Some(vec![3, 1]);
        recipe.layout.data = Some(2);
        recipe.layout.micro_batch = Some(4);
    });
    let all = lower(&plan, plan.best(), &launch());
    let told: Vec<_> = all.iter().map(|a| (a.training.share.clone(), a.training.micro_batches)).collect();
    assert_eq!(told, [(0..24, 6), (24..32, 2)]);
    for assignment in &all {
        let forwards = assignment.step.iter().filter(|action| matches!(action, Action::Forward(_)));
        assert_eq!(forwards.count(), assignment.training.micro_batches as usize);
        assert_eq!(assignment.training.batch, 32, "a pass weighs its part of the whole batch");
    }
    assert!(plan.best().candidate.to_string().contains("6 + 2 micro-batches of 4"));
}

#[test]
fn the_blocks_of_a_pipeline_are_given_out_once() {
    let plan = planned(|_| {});
    for stages in 1..=4 {
        let mut choice = plan.best().clone();
        choice.candidate.arrangement.layout.pipeline = NonZeroU32::new(stages).expect("positive");
        choice.candidate.arrangement.layout.data = NonZeroU32::MIN;
        let blocks: Vec<u32> = lower(&plan, &choice, &launch())
            .into_iter()
            .flat_map(|a| a.chunks.into_iter().flatten())
            .collect();
        assert_eq!(blocks, (0..4).collect::<Vec<_>>());
    }
}

#[test]
fn the_end_of_the_run_is_that_of_the_recipe() {
    let plan = planned(|recipe| {
        recipe.objective.stop = StopConditions {
            epochs: Some(2.0),
            time: Some(Seconds(60.0)),
            target: Some(1.2),
            ..StopConditions::default()
        };
    });
    let rank = &lower(&plan, plan.best(), &launch())[0];
    assert_eq!(rank.until.steps, Some(StepId(313)), "10,000 samples by 32");
    assert_eq!(
        rank.until.target,
        Some(MetricTarget { metric: Metric::ValidLoss, goal: Goal::Min, value: 1.2 })
    );
    assert_eq!((rank.until.seconds, rank.until.spent_seconds), (Some(47.5), 12.5));
    let late = AttemptSpec { spent_seconds: 75.0, ..launch() };
    let rank = &lower(&plan, plan.best(), &late)[0];
    assert_eq!((rank.until.seconds, rank.until.spent_seconds), (Some(0.0), 60.0), "nothing is left");
    assert_eq!(rank.link, RankTransport::Alone);
}

#[test]
fn a_command_is_told_the_values_and_the_layout_of_its_plan() {
    let mut recipe = fixtures::recipe();
    recipe.model = Model::Command(dtrain_recipes::ForeignCommand {
        argv: [
            "run",
            "--pp={layout.pipeline}",
            "--dp={layout.data}",
            "{train.batch}",
            "{params.x}",
            "{params.y}",
        ]
        .map(str::to_owned)
        .to_vec(),
        env: BTreeMap::from([("RANKS".to_owned(), "{cluster.ranks}".to_owned())]),
        framework: dtrain_recipes::Framework::Pytorch,
        progress: Vec::new(),
    });
    recipe.data = None;
    recipe.params = BTreeMap::from([("x".to_owned(), dtrain_recipes::ParamValue::Real(0.5))]);
    (recipe.cluster.ranks, recipe.layout.pipeline) = (Some(4), Some(2));
    let host = fixtures::host(4);
    let of = |recipe: &Recipe| plan(&fixtures::request(recipe, &host, None));
    let planned = of(&recipe).expect("it is planned");
    assert_eq!(planned.batch.value, 32, "what the recipe says is recorded");
    let all = lower(&planned, planned.best(), &launch());
    assert_eq!(all.len(), 4);
    for assignment in all {
        let Model::Command(command) = &assignment.model else { panic!("it is a command") };
        assert_eq!(command.argv, ["run", "--pp=2", "--dp=2", "32", "0.5"], "y does not apply");
        assert_eq!(command.env["RANKS"], "4");
        let params: serde_json::Value = serde_json::from_str(&command.env["DTRAIN_PARAMS"]).expect("JSON");
        assert_eq!(params["layout"]["pipeline"], 2);
        assert_eq!(params["params"], serde_json::json!({ "x": 0.5 }));
    }
    recipe.cluster.ranks = Some(3);
    let uneven = of(&recipe).expect_err("two stages on three ranks").to_string();
    assert!(uneven.contains("multiple of 2") && uneven.contains("has 3"), "{uneven}");
}

#[test]
fn ranks_are_told_the_implementation_of_attention() {
    let told = |attention| {
        let plan = planned(|recipe| {
            recipe.engine = dtrain_recipes::TrainingEngine::Fsdp;
            recipe.train.state.attention = attention;
        });
        let all = lower(&plan, plan.best(), &launch());
        all.iter().map(|assignment| assignment.training.attention).collect::<Vec<_>>()
    };
    assert!(told(None).into_iter().all(|attention| attention.is_none()));
    let eager = Some(dtrain_recipes::AttentionImplementation::Eager);
    assert!(told(eager).into_iter().all(|attention| attention == eager));
}

#[test]
fn ranks_are_told_the_weight_of_the_z_loss() {
    let told = |z_loss| {
        let plan = planned(|recipe| recipe.train.z_loss = z_loss);
        let all = lower(&plan, plan.best(), &launch());
        all.iter().map(|assignment| assignment.training.z_loss).collect::<Vec<_>>()
    };
    assert!(told(0.0).into_iter().all(|weight| weight == 0.0));
    assert!(told(1e-4).into_iter().all(|weight| weight == 1e-4));
}
