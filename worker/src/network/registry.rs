//! Registry of this program's custom networks, by name.

use super::{ModelPart, ModelSettings, NeuralNetwork};
use burn::tensor::Device;
use dtrain_recipes::{CustomModel, PartOutline};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A function that builds a network from its settings in a recipe. An `Err` is shown to the user.
pub type BuildFn =
    dyn Fn(&ModelSettings<'_>) -> Result<Box<dyn NeuralNetwork>, Box<dyn Error + Send + Sync>> + Send + Sync;

static NETWORKS: RwLock<BTreeMap<String, Arc<BuildFn>>> = RwLock::new(BTreeMap::new());

/// The reason why a network cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelBuildError {
    /// The model is a foreign command, which has no network.
    #[error("a foreign command has no stage; it is started, not trained by this worker")]
    Foreign,
    /// The program has not registered the network that the recipe names.
    #[error("this program has no network {wanted:?}; {}", registered_names(.registered))]
    Unknown {
        /// Name of the network in the recipe.
        wanted: String,
        /// Names of the registered networks.
        registered: Vec<String>,
    },
    /// The network does not fit the recipe, or its parts do not fit each other.
    #[error("the network {network:?} cannot be built: {reason}")]
    Refused {
        /// Name of the network in the recipe.
        network: String,
        /// The reason that the network or a check of it gave.
        reason: String,
    },
}

fn registered_names(registered: &[String]) -> String {
    match registered {
        [] => "it has none of its own: use the program that registers it".to_owned(),
        [one] => format!("it has {one:?}"),
        several => format!(
            "it has {}",
            several.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
        ),
    }
}

/// Registers a network with this program under `name`, in place of any other of that name.
pub fn register(name: &str, build: Arc<BuildFn>) {
    NETWORKS.write().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), build);
}

/// Returns the names of the registered networks.
pub fn registered() -> Vec<String> {
    NETWORKS.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
}

/// Builds the custom network of `own`; its random values follow from `seed`, and are equal on every rank.
pub(crate) fn built(own: &CustomModel, seed: u64) -> Result<Box<dyn NeuralNetwork>, ModelBuildError> {
    let build = NETWORKS.read().unwrap_or_else(PoisonError::into_inner).get(&own.network).cloned();
    let build = build
        .ok_or_else(|| ModelBuildError::Unknown { wanted: own.network.clone(), registered: registered() })?;
    // The backend has one random generator for all threads.
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Device::flex().seed(seed);
    let settings = ModelSettings::of(own);
    let network = build(&settings).map_err(|error| build_refused(own, error.to_string()))?;
    drop(turn);
    settings.all_read().map_err(|reason| build_refused(own, reason))?;
    planned(own, &*network).map_err(|reason| build_refused(own, reason))?;
    Ok(network)
}

pub(super) fn build_refused(own: &CustomModel, reason: String) -> ModelBuildError {
    ModelBuildError::Refused { network: own.network.clone(), reason }
}

/// Checks that a network matches its outline in the plan, if the plan has one.
fn planned(own: &CustomModel, network: &dyn NeuralNetwork) -> Result<(), String> {
    let planned = &own.outline;
    if planned.blocks.is_empty() {
        return Ok(());
    }
    let (wanted, found) = (planned.blocks.len(), network.blocks());
    if u32::try_from(wanted) != Ok(found) {
        return Err(format!("it was planned with {wanted} blocks, and this program makes {found}"));
    }
    let blocks = (0..found).map(ModelPart::Block);
    let parts = std::iter::once(ModelPart::First).chain(blocks).chain(std::iter::once(ModelPart::Head));
    for (part, outline) in parts.zip(planned.parts()) {
        same(part, outline, network)?;
    }
    Ok(())
}

fn same(part: ModelPart, planned: &PartOutline, network: &dyn NeuralNetwork) -> Result<(), String> {
    let found = shapes(part, network);
    if found == planned.parameters {
        return Ok(());
    }
    let part = part.prefix();
    Err(format!(
        "`{}` was planned with parameters {:?}, and this program makes {found:?}; plan again with this program",
        part.trim_end_matches('.'),
        planned.parameters
    ))
}

/// Returns the shape of each parameter of one part of a network.
pub(super) fn shapes(part: ModelPart, network: &dyn NeuralNetwork) -> Vec<Vec<u64>> {
    let specs = network.parameters(part).into_iter();
    specs.map(|spec| spec.shape.iter().map(|side| *side as u64).collect()).collect()
}
