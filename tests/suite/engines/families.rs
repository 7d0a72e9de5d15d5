//! Newer families of models, trained by an engine as by the own worker.

use super::{Form, assert_near, command, env, python};
use crate::interop::series;

/// Settings of a model of each family, for the recipe of these tests.
const FAMILIES: [(&str, &[&str]); 3] = [
    (
        "Llama 3.2",
        &[
            "model.tied=true",
            "model.rotary_base=500000",
            "model.rotary_scaling={ kind = \"llama3\", factor = 32.0, original_context = 32 }",
        ],
    ),
    ("Qwen3", &["model.qk_norm=true", "model.head_width=32", "model.norm_epsilon=1e-6"]),
    ("Qwen3-MoE", &["model.qk_norm=true", "model.experts=4", "model.ffn=32", "model.balance=0"]),
];

#[test]
fn newer_families_are_trained_by_an_engine_as_by_the_own_worker() {
    let Some(python) = python(Form::Whole) else { return };
    for (family, settings) in FAMILIES {
        let env = env();
        let steps = "objective.stop={ steps = 10 }";
        let alone = [settings, &[steps, "cluster.ranks=1"]].concat();
        env.expect(0, command(&env, "dtrain", &python, &alone));
        let wanted = series(&env, "loss");
        for layout in ["layout.zero=0", "layout.zero=3"] {
            let more = [settings, &[steps, layout]].concat();
            env.expect(0, command(&env, "fsdp", &python, &more));
            let found = series(&env, "loss");
            println!("{family}, {layout}: {wanted:?} {found:?}");
            assert_near(&format!("{family}, {layout}"), &wanted, &found);
        }
    }
}
