//! How gradients meet those of the other replicas.
