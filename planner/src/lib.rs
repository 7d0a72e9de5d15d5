//! Pure search: recipe, cluster and rates to a plan.
