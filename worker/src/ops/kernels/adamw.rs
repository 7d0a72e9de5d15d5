//! AdamW step on slices, value by value.

use super::UpdateCoefficients;

simd! {
    /// Performs a step of Adam with decoupled weight decay (Loshchilov and Hutter 2019).
    fn adamw(values: &mut [f32], gradient: &[f32], first: &mut [f32], second: &mut [f32], n: &UpdateCoefficients) {
        let keep = 1.0 - n.rate * n.decay;
        for (((p, g), m), v) in values.iter_mut().zip(gradient).zip(first).zip(second) {
            let g = *g * n.scale;
            *m = n.beta1 * *m + (1.0 - n.beta1) * g;
            *v = n.beta2 * *v + (1.0 - n.beta2) * g * g;
            *p = *p * keep - n.rate * (*m * n.correction1) / ((*v * n.correction2).sqrt() + n.epsilon);
        }
    }
}
