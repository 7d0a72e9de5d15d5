"""What a device could do at most, by its data sheet: products without sparsity and memory. No measurement."""

# A part of the name, as `nvidia-smi` and Vulkan tell it: TFLOP/s of products in 16 bits and in TF32, TB/s of memory. The first that fits
# counts. From NVIDIA's data sheets (H100, H200, B200, A100, A10, L4, L40S) and architecture white papers (Ada, Ampere GA102, Turing),
# https://www.nvidia.com/en-us/data-center/ and https://images.nvidia.com/aem-dam/; where those count sparsity, half is taken. Products
# are accumulated in f32.
PEAKS = [
    ("B200", 2250.0, 1125.0, 8.0),
    ("H200", 989.4, 494.7, 4.8),
    ("GH200", 989.4, 494.7, 4.0),
    ("H100 NVL", 835.0, 417.5, 3.94),
    ("H100 PCIe", 756.0, 378.0, 2.0),
    ("H100", 989.4, 494.7, 3.35),
    ("A100-PCIE-40GB", 312.0, 156.0, 1.555),
    ("A100-SXM4-40GB", 312.0, 156.0, 1.555),
    ("A100 80GB PCIe", 312.0, 156.0, 1.935),
    ("A100", 312.0, 156.0, 2.039),
    ("L40S", 362.05, 183.0, 0.864),
    ("L4", 121.0, 60.0, 0.3),
    ("A10", 125.0, 62.5, 0.6),
    ("RTX 4090", 165.2, 82.6, 1.008),
    ("RTX 3090", 71.0, 35.6, 0.936),
    ("T4", 65.0, 8.1, 0.32),
]


def peak(name, found_products=()):
    """Rates of a device of that name; of one that is not known those of its best products, and no rate of memory."""
    for part, half, full, memory in PEAKS:
        if part in (name or "").replace("_", " ") or part in (name or ""):
            return {"of": f"{part}, by its data sheet", "half": half * 1e12, "f32": full * 1e12, "memory": memory * 1e12}
    best = {}
    for one in found_products:
        key = "f32" if one["precision"] == "f32" else "half"
        best[key] = max(best.get(key, 0.0), one["gflops"] * 1e9)
    return {"of": "the fastest product that was measured", "half": best.get("half"), "f32": best.get("f32"), "memory": None}


def rate(peaks, precision):
    return peaks["f32" if precision == "f32" else "half"]


def width(precision):
    """Bytes of a value in a product."""
    return 4 if precision == "f32" else 2


def product_seconds(peaks, side, precision):
    """Seconds of a product of square matrices at least: its operations, or reading both and writing the result."""
    operations = rate(peaks, precision)
    if not operations:
        return None
    moved = 3 * side * side * width(precision) / peaks["memory"] if peaks["memory"] else 0.0
    return max(2 * side**3 / operations, moved)


def attention_seconds(peaks, one):
    """Seconds of causal attention and its gradient at least. Of the pairs of tokens, half are needed; queries, keys, values, the result
    and the gradients of all are moved once in f32, as a training keeps them."""
    operations = rate(peaks, one["precision"])
    if not operations:
        return None
    heads, length, wide = one["heads"], one["length"], one["head_width"]
    moved = 8 * heads * length * wide * 4 / peaks["memory"] if peaks["memory"] else 0.0
    return max(6 * heads * length**2 * wide / operations, moved)


def step_flops(decoder, parameters, batch):
    """Operations of a training step as papers count them: six for a parameter and token, and attention of all pairs."""
    tokens = batch * decoder["context"]
    return tokens * (6 * parameters + 12 * decoder["layers"] * decoder["hidden"] * decoder["context"])


def step_seconds(peaks, decoder, parameters, batch, precision):
    """Seconds of a step at least: its operations, and what AdamW moves (weights, gradients, two moments; 28 bytes a parameter)."""
    operations = rate(peaks, precision)
    if not operations:
        return None
    moved = 28 * parameters / peaks["memory"] if peaks["memory"] else 0.0
    return step_flops(decoder, parameters, batch) / operations + moved
