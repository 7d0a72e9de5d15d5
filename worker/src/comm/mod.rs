//! Collectives over buffers: how ranks exchange numbers.
