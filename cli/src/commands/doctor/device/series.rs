//! Tables of the optional parts of a device report: training steps, and NCCL with one rank.

use super::columns::{left, right};
use crate::output::PageStyle;
use crate::render::number::{count, counted, loss, seconds, whole};
use crate::render::table::{StyledText, TextRole, table};
use dtrain_protocol::device_check::{MeasuredStep, NcclCall, StepSeries};
use dtrain_recipes::Bytes;
use dtrain_recipes::number_format;

/// Formats the title of the steps table: size of the model, and tokens per second.
pub(super) fn title(steps: &StepSeries) -> String {
    let StepSeries { decoder, parameters, batch, precision, tokens_per_second, .. } = steps;
    format!(
        "steps of {} parameters in {}, {} of {} tokens each: {} tokens/s",
        number_format::parameters(*parameters),
        precision.name(),
        counted((*batch).into(), "sequence"),
        decoder.context,
        count(*tokens_per_second)
    )
}

/// Formats the table of training steps, one row per step.
pub(super) fn steps(steps: &StepSeries, style: PageStyle) -> String {
    let columns = [right("step"), right("loss"), right("seconds"), right("memory used"), right("held")];
    let bytes = |bytes: Option<u64>| bytes.map_or_else(String::new, |bytes| Bytes(bytes).to_string());
    let row = |(number, step): (usize, &MeasuredStep)| {
        vec![
            (number + 1).to_string().into(),
            loss(step.loss).into(),
            seconds(step.seconds).into(),
            bytes(step.memory_used_bytes).into(),
            bytes(step.memory_reserved_bytes).into(),
        ]
    };
    let rows: Vec<Vec<StyledText>> = steps.series.iter().enumerate().map(row).collect();
    table(&columns, &rows, style)
}

/// Formats the table of NCCL calls, one row per call; empty without calls.
pub(super) fn nccl(calls: &[NcclCall], style: PageStyle) -> String {
    if calls.is_empty() {
        return String::new();
    }
    let row = |call: &NcclCall| {
        let verdict = if call.agrees {
            StyledText::new("agrees", TextRole::Good)
        } else {
            StyledText::new("DIFFERS", TextRole::Bad)
        };
        vec![call.call.clone().into(), verdict, whole(call.values).into(), seconds(call.seconds).into()]
    };
    let rows: Vec<Vec<StyledText>> = calls.iter().map(row).collect();
    table(&[left("call"), left(""), right("values"), right("seconds")], &rows, style)
}

/// Describes the failure of an NCCL call.
pub(super) fn difference(call: &NcclCall) -> String {
    format!("{}: {}", call.call, call.detail.as_deref().unwrap_or("wrong values"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::color::ColorMode;
    use dtrain_protocol::device_check::StepsModel;
    use dtrain_recipes::{Decoder, Precision};

    #[test]
    fn steps_and_calls_have_a_row_each() {
        let style = PageStyle { paint: ColorMode::plain(), width: 120, is_ascii: false, now_ms: 0 };
        let decoder = Decoder {
            layers: 1,
            hidden: 8,
            heads: 1,
            kv_heads: 1,
            ffn: 8,
            vocab: 8,
            context: 1024,
            ..Decoder::small_llama()
        };
        let step = MeasuredStep {
            loss: 10.5,
            seconds: 0.5,
            memory_used_bytes: Some(1 << 30),
            memory_reserved_bytes: Some(2 << 30),
        };
        let found = StepSeries {
            model: StepsModel::Gpt2,
            decoder,
            parameters: 1_234_567,
            batch: 8,
            precision: Precision::Bf16,
            series: vec![step.clone(), MeasuredStep { memory_used_bytes: None, ..step }],
            tokens_per_second: 16_384.0,
        };
        let words = title(&found);
        assert!(words.contains("bf16, 8 sequences of 1024 tokens"), "{words}");
        let table = steps(&found, style);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 3, "{table}");
        assert!(lines[1].contains("1.0 GiB") && lines[1].contains("2.0 GiB"), "{table}");
        assert!(!lines[2].contains("1.0 GiB"), "what is not told is left out: {table}");
        let call = |name: &str, agrees| NcclCall {
            call: name.into(),
            values: 3,
            seconds: 0.1,
            agrees,
            detail: None,
        };
        let table = nccl(&[call("all-reduce", true), call("exchange", false)], style);
        assert!(table.contains("agrees") && table.contains("DIFFERS"), "{table}");
        assert_eq!(difference(&call("exchange", false)), "exchange: wrong values");
    }
}
