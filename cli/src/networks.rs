//! Outlines of custom networks (`kind = "custom"`), from which the planner plans.

use dtrain_recipes::{CheckedRecipe, CustomModel, Model, Outline, Problem};
use dtrain_worker::network::{ModelBuildError, outline, registered};
use std::sync::{Mutex, PoisonError};

/// Builds the custom network of a checked recipe, if it has one, and stores its outline for the planner.
pub(crate) fn outline_custom_network(checked: &mut CheckedRecipe) -> Result<(), Vec<Problem>> {
    let Model::Custom(own) = &mut checked.recipe.model else { return Ok(()) };
    match cached_outline(own) {
        Ok(outline) => own.outline = outline,
        Err(unbuilt) => {
            let said = checked.resolved.iter().find(|value| value.path == "model.network");
            let problem = Problem::new(unbuilt.to_string());
            let problem = match said {
                Some(value) => problem.at(&value.origin),
                None => problem,
            };
            let problem = match (&unbuilt, registered().is_empty()) {
                (ModelBuildError::Unknown { .. }, true) => problem.hint(
                    "a program makes a network known with `dtrain::Program::new().network(NAME, build)`",
                ),
                (ModelBuildError::Unknown { .. }, false) => {
                    problem.hint("write one of these names, or register the network")
                }
                (ModelBuildError::Refused { .. } | ModelBuildError::Foreign, _) => problem,
            };
            return Err(vec![problem]);
        }
    }
    Ok(())
}

/// Returns the outline of a custom network, which is built only once per process.
fn cached_outline(own: &CustomModel) -> Result<Outline, ModelBuildError> {
    static KNOWN: Mutex<Vec<(CustomModel, Outline)>> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, outline)) = known.iter().find(|(one, _)| one == own) {
        return Ok(outline.clone());
    }
    let found = outline(own)?;
    known.push((own.clone(), found.clone()));
    Ok(found)
}
