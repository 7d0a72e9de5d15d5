//! Picks the backend a rank computes on.
