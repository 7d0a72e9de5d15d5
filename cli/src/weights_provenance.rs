//! Keys under which a trial's provenance has the pretrained weights that it started from.

/// Provenance key for the folder of the weights.
pub(crate) const FOLDER: &str = "weights.folder";
/// Provenance key for the BLAKE3 digest of configuration and tensors.
pub(crate) const DIGEST: &str = "weights.blake3";
/// Provenance key for the name and commit of a model of the Hugging Face Hub.
pub(crate) const MODEL: &str = "weights.model";
