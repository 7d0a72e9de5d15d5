//! Contents of checkpoints written by real training: complete, and readable by later versions.

mod commands;
mod damage;
mod golden;

use dtrain_protocol::Slice;
use dtrain_protocol::input_manifest::INPUTS;
use dtrain_runner::TrialFolder;
use dtrain_runner::checkpoints::{
    CheckpointStore, Inventory, LocalStore, VerificationReport, verify_all_copies,
};
use dtrain_worker::checkpoint::{CheckpointError, TensorReader};
use std::path::Path;

/// Reads everything of the committed checkpoint in `folder`.
pub(crate) fn examined(folder: &Path) -> Result<VerificationReport, String> {
    let trial = folder.parent().and_then(Path::parent).expect("it lies in the folder of its trial");
    let name = folder.file_name().and_then(|name| name.to_str()).expect("it has a name");
    let mut holders: [Box<dyn CheckpointStore>; 1] = [Box::new(LocalStore::new(TrialFolder::at(trial)))];
    let inventory = Inventory::collect(&mut holders)?;
    verify_all_copies(&mut holders, &inventory, name, &mut |_, _| {})
}

/// Reads every tensor of a checkpoint, as ranks do.
fn read(folder: &Path) -> Result<(), CheckpointError> {
    let reader = TensorReader::open(folder)?;
    reader.file(INPUTS)?;
    for tensor in &reader.manifest().tensors {
        let whole = Slice::whole(&tensor.shape);
        let mut room = vec![0.0; usize::try_from(whole.elements()).expect("it is small")];
        reader.read(&tensor.name, tensor.kind, &whole, &mut room)?;
    }
    Ok(())
}
