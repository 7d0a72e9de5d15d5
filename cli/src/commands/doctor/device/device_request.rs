//! Conversion of `dtrain doctor --device` arguments into a request.

use crate::args::{DoctorArgs, ModelChoice, PartChoice, PrecisionChoice};
use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use dtrain_protocol::device_check::{DeviceTest, StepsModel, StepsRequest};
use dtrain_recipes::Precision;

/// Default number of training steps in the part `steps` of the examination.
const STEPS: u32 = 10;

/// Returns the parts of the examination to run; the default ones if `only` is empty.
pub(super) fn parts(only: &[PartChoice]) -> Vec<DeviceTest> {
    if only.is_empty() {
        DeviceTest::USUAL.to_vec()
    } else {
        only.iter().map(|choice| part(*choice)).collect()
    }
}

fn part(choice: PartChoice) -> DeviceTest {
    match choice {
        PartChoice::Parity => DeviceTest::Parity,
        PartChoice::Training => DeviceTest::Training,
        PartChoice::Products => DeviceTest::Products,
        PartChoice::Attention => DeviceTest::Attention,
        PartChoice::Copies => DeviceTest::Copies,
        PartChoice::Links => DeviceTest::Links,
        PartChoice::Steps => DeviceTest::Steps,
        PartChoice::Nccl => DeviceTest::Nccl,
    }
}

/// Returns the training run of the part `steps`; `Err` if its options are given without `--only steps`.
pub(super) fn steps(args: &DoctorArgs) -> Result<StepsRequest, CommandError> {
    let is_sized = args.model.is_some() || args.steps.is_some() || args.batch.is_some();
    let is_described = is_sized || args.precision.is_some() || args.profile;
    if is_described && !args.only.contains(&PartChoice::Steps) {
        let what = "--model, --precision, --steps, --batch and --profile are about `--only steps`";
        return Err(CommandError::new(ExitReason::Usage, what)
            .hint("`dtrain doctor --device cuda --only steps --model gpt2 --precision bf16`"));
    }
    Ok(StepsRequest {
        model: match args.model.unwrap_or(ModelChoice::Gpt2) {
            ModelChoice::Tiny => StepsModel::Tiny,
            ModelChoice::Gpt2 => StepsModel::Gpt2,
            ModelChoice::Llama1b => StepsModel::Llama1b,
        },
        precision: args.precision.map(|choice| match choice {
            PrecisionChoice::F32 => Precision::F32,
            PrecisionChoice::Bf16 => Precision::Bf16,
            PrecisionChoice::F16 => Precision::F16,
        }),
        batch: args.batch,
        count: args.steps.unwrap_or(STEPS),
        is_profiled: args.profile,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::DeviceChoice;

    fn args(only: Vec<PartChoice>) -> DoctorArgs {
        DoctorArgs {
            hosts: Vec::new(),
            device: Some(DeviceChoice::Cpu),
            index: 0,
            output: None,
            only,
            model: None,
            precision: None,
            steps: None,
            batch: None,
            profile: false,
        }
    }

    #[test]
    fn every_part_can_be_asked_for_alone_and_most_are_usual() {
        assert_eq!(parts(&[]), DeviceTest::USUAL);
        assert_eq!(parts(&[PartChoice::Nccl, PartChoice::Parity]), [DeviceTest::Nccl, DeviceTest::Parity]);
        let all = <PartChoice as clap::ValueEnum>::value_variants();
        let mut each = parts(all);
        each.dedup();
        assert_eq!(each.len(), all.len(), "no two choices are the same part");
    }

    #[test]
    fn a_training_that_is_described_must_be_asked_for() {
        let (model, number) = (Some(ModelChoice::Tiny), Some(3));
        let asked = DoctorArgs { model, batch: Some(2), steps: number, ..args(vec![PartChoice::Steps]) };
        let request = steps(&asked).expect("it is asked for");
        assert_eq!((request.model, request.batch, request.count), (StepsModel::Tiny, Some(2), 3));
        let usual = steps(&args(vec![PartChoice::Steps])).expect("it is asked for");
        assert_eq!((usual.model, usual.batch, usual.count), (StepsModel::Gpt2, None, STEPS));
        let parity = || args(vec![PartChoice::Parity]);
        for other in [
            DoctorArgs { batch: Some(2), ..parity() },
            DoctorArgs { model, ..parity() },
            DoctorArgs { steps: number, ..parity() },
            DoctorArgs { precision: Some(PrecisionChoice::F16), ..parity() },
            DoctorArgs { profile: true, ..parity() },
        ] {
            assert_eq!(steps(&other).expect_err("it is refused").exit(), ExitReason::Usage);
        }
        assert!(steps(&args(Vec::new())).is_ok());
    }
}
