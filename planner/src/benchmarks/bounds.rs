//! Validates rows of a table: rejects values that no real training can have, and names the column.

use super::table::TableRow;

/// Upper limit of the values in each column, far above any real training.
const LARGEST: [(&str, f64); 35] = [
    ("num_gpus", 1e7),
    ("gpus_per_node", 1e5),
    ("gpu_mem_gib", 1e5),
    ("internode_gbps_per_gpu", 1e6),
    ("layers", 1e4),
    ("hidden", 1e7),
    ("heads", 1e6),
    ("kv_heads", 1e6),
    ("ffn", 1e8),
    ("vocab", 1e8),
    ("seq", 1e9),
    ("moe_experts", 1e5),
    ("moe_topk", 1e5),
    ("moe_ffn", 1e8),
    ("global_batch", 1e9),
    ("micro_batch", 1e9),
    ("tp", 1e7),
    ("pp", 1e7),
    ("vp", 1e4),
    ("cp", 1e7),
    ("ep", 1e7),
    ("dp", 1e7),
    ("params_b", 1e9),
    ("head_width", 1e6),
    ("value_width", 1e6),
    ("latent_query", 1e7),
    ("latent_key_value", 1e7),
    ("latent_rotary", 1e6),
    ("window", 1e9),
    ("window_share", 1.0),
    ("shared_ffn", 1e8),
    ("dense_layers", 1e4),
    ("mtp_layers", 1e3),
    ("shard_ranks", 1e7),
    ("link_domain", 1e7),
];

/// Columns of `LARGEST` that allow fractions; all others are counts.
const FRACTIONS: [&str; 4] = ["gpu_mem_gib", "internode_gbps_per_gpu", "params_b", "window_share"];

/// Columns that must be 0 or 1.
const SWITCHES: [&str; 2] = ["gated_mlp", "seq_parallel"];

/// Pairs of columns of which the first may not exceed the second, with the reason.
const AT_MOST: [(&str, &str, &str); 14] = [
    ("pp", "layers", "every stage has a layer"),
    ("kv_heads", "heads", "heads share those of keys and values"),
    ("heads", "hidden", "every head has a channel"),
    ("moe_topk", "moe_experts", "a token goes to each expert once"),
    ("ep", "moe_experts", "every rank has an expert"),
    ("tp", "num_gpus", "every rank has a GPU"),
    ("cp", "num_gpus", "every rank has a GPU"),
    ("dp", "num_gpus", "every replica has a GPU"),
    ("ep", "num_gpus", "every rank has a GPU"),
    ("micro_batch", "global_batch", "a micro-batch is a part of it"),
    ("shard_ranks", "num_gpus", "every replica has a GPU"),
    ("dense_layers", "layers", "they are among all layers"),
    ("latent_rotary", "head_width", "rotary channels are a part of a head"),
    ("mtp_layers", "layers", "they are fewer than those of the model"),
];

/// Returns an error that names the column and the reason if `row` cannot describe a training.
pub(super) fn check(row: &TableRow) -> Result<(), String> {
    for (column, largest) in LARGEST {
        number(row, column, largest)?;
    }
    for column in SWITCHES {
        match row.text(column) {
            "" | "0" | "1" => {}
            text => return Err(format!("`{column}` is `{text}`: 0 or 1 is wanted")),
        }
    }
    for (column, other, why) in AT_MOST {
        if let (Some(value), Some(most)) = (row.positive(column), row.positive(other))
            && value > most
        {
            return Err(format!("`{column}` is {value}, more than `{other}`, which is {most}: {why}"));
        }
    }
    let degree = |column| row.positive(column).unwrap_or(1.0).max(1.0);
    let (ranks, devices) = (degree("tp") * degree("pp") * degree("cp"), degree("num_gpus"));
    if ranks > devices {
        return Err(format!("`tp` · `pp` · `cp` is {ranks}, more than `num_gpus`, which is {devices}"));
    }
    let (stages, layers) = (degree("pp") * degree("vp"), degree("layers"));
    // Embedding and head may count as one layer each.
    if stages > layers + 2.0 {
        return Err(format!(
            "`pp` · `vp` is {stages}, more than `layers`, which is {layers}: every chunk has a layer"
        ));
    }
    Ok(())
}

/// Returns an error if the cell of `row` in `column` is filled and not a number allowed there.
fn number(row: &TableRow, column: &str, largest: f64) -> Result<(), String> {
    let text = row.text(column);
    if text.is_empty() {
        return Ok(());
    }
    let Ok(value) = text.parse::<f64>() else {
        return Err(format!("`{column}` is `{text}`: a number is wanted"));
    };
    match () {
        () if value.is_nan() || value > largest => {
            Err(format!("`{column}` is {text}, at most {largest} is possible"))
        }
        () if value < 0.0 => Err(format!("`{column}` is {value}, below 0")),
        () if value.fract() != 0.0 && !FRACTIONS.contains(&column) => {
            Err(format!("`{column}` is {text}: a whole number is wanted"))
        }
        () => Ok(()),
    }
}
