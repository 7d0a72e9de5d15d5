//! Reads columns whose cells are one of a few values.

use super::table::TableRow;
use crate::analytic::MatmulPrecision;
use crate::engine::{AttentionKernel, SoftwareStyle};
use dtrain_recipes::PipelineSchedule;

/// Values of the column `products`. The price of `fp32` is that of TF32 where the device has it.
pub(super) const PRODUCTS: [(&str, MatmulPrecision); 7] = [
    ("fp32", MatmulPrecision::Bits32),
    ("tf32", MatmulPrecision::Bits32),
    ("bf16", MatmulPrecision::Bits16),
    ("fp16", MatmulPrecision::Bits16),
    ("fp8", MatmulPrecision::Bits8),
    ("fp8-block", MatmulPrecision::Blocks8),
    ("fp4-block", MatmulPrecision::Blocks4),
];

/// Values of the column `gradients`, as bytes of a gradient on its way.
pub(super) const GRADIENTS: [(&str, f64); 4] = [("fp32", 4.0), ("bf16", 2.0), ("fp16", 2.0), ("none", 0.0)];

/// Values of the column `kernel`.
pub(super) const KERNELS: [(&str, AttentionKernel); 5] = [
    ("unfused", AttentionKernel::Unfused),
    ("plain", AttentionKernel::Plain),
    ("flash1", AttentionKernel::Flash1),
    ("flash2", AttentionKernel::Flash2),
    ("fused", AttentionKernel::Fused),
];

/// Values of the column `style`.
const STYLES: [SoftwareStyle; 9] = [
    SoftwareStyle::Research,
    SoftwareStyle::Megatron,
    SoftwareStyle::Modern,
    SoftwareStyle::Fsdp,
    SoftwareStyle::HuggingFace,
    SoftwareStyle::FullyShard,
    SoftwareStyle::Compiled,
    SoftwareStyle::Xla,
    SoftwareStyle::Dtrain,
];

/// Values of the column `pipeline_schedule`.
pub(super) const SCHEDULES: [(&str, PipelineSchedule); 4] = [
    ("gpipe", PipelineSchedule::Gpipe),
    ("1f1b", PipelineSchedule::OneForwardOneBackward),
    ("interleaved", PipelineSchedule::Interleaved),
    ("zero-bubble", PipelineSchedule::ZeroBubble),
];

/// Values of columns that say yes or no.
const SWITCH: [(&str, bool); 2] = [("0", false), ("1", true)];

/// Returns the value that the cell in `column` names; `None` if the cell is blank.
pub(super) fn choice<T: Copy>(
    row: &TableRow,
    column: &str,
    values: &[(&'static str, T)],
) -> Result<Option<T>, String> {
    let cell = row.text(column);
    if cell.is_empty() {
        return Ok(None);
    }
    let found = values.iter().find(|(name, _)| *name == cell);
    found.map(|(_, value)| Some(*value)).ok_or_else(|| {
        let names: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
        format!("`{column}` is `{cell}`: wanted one of {}, or leave it blank", names.join(", "))
    })
}

/// Returns the software style in the column `style`.
pub(super) fn style(row: &TableRow) -> Result<Option<SoftwareStyle>, String> {
    choice(row, "style", &STYLES.map(|style| (style.name(), style)))
}

/// Returns the value of a column that says yes (1) or no (0).
pub(super) fn switch(row: &TableRow, column: &str) -> Result<Option<bool>, String> {
    choice(row, column, &SWITCH)
}
