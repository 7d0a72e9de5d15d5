//! Steps of SGD, Lion and LAMB on slices, value by value, and the coefficients of every optimizer.

/// The coefficients of one optimizer step, for one parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpdateCoefficients {
    pub(crate) beta1: f32,
    pub(crate) beta2: f32,
    pub(crate) epsilon: f32,
    /// Learning rate.
    pub(crate) rate: f32,
    /// Coefficient of decoupled weight decay.
    pub(crate) decay: f32,
    /// Factor of every gradient, from clipping and the loss scale.
    pub(crate) scale: f32,
    /// Bias correction of the first moment, `1 / (1 - beta1^t)`, because it starts at zero; then that of the
    /// second.
    pub(crate) correction1: f32,
    pub(crate) correction2: f32,
}

simd! {
    /// Performs an SGD step with heavy-ball momentum.
    fn sgd(values: &mut [f32], gradient: &[f32], first: &mut [f32], n: &UpdateCoefficients) {
        let keep = 1.0 - n.rate * n.decay;
        for ((p, g), m) in values.iter_mut().zip(gradient).zip(first) {
            *m = n.beta1 * *m + *g * n.scale;
            *p = *p * keep - n.rate * *m;
        }
    }

    /// Performs a Lion step: the sign of an interpolated momentum (Chen et al. 2023).
    fn lion(values: &mut [f32], gradient: &[f32], first: &mut [f32], n: &UpdateCoefficients) {
        let keep = 1.0 - n.rate * n.decay;
        for ((p, g), m) in values.iter_mut().zip(gradient).zip(first) {
            let g = *g * n.scale;
            let mixed = n.beta1 * *m + (1.0 - n.beta1) * g;
            let sign = f32::from(i8::from(mixed > 0.0) - i8::from(mixed < 0.0));
            *p = *p * keep - n.rate * sign;
            *m = n.beta2 * *m + (1.0 - n.beta2) * g;
        }
    }

    /// Computes the direction of a LAMB step: Adam's step of unit rate plus weight decay, before the trust
    /// ratio.
    fn lamb_direction(
        direction: &mut [f32],
        values: &[f32],
        gradient: &[f32],
        first: &mut [f32],
        second: &mut [f32],
        n: &UpdateCoefficients,
    ) {
        for ((((d, p), g), m), v) in direction.iter_mut().zip(values).zip(gradient).zip(first).zip(second) {
            let g = *g * n.scale;
            *m = n.beta1 * *m + (1.0 - n.beta1) * g;
            *v = n.beta2 * *v + (1.0 - n.beta2) * g * g;
            *d = (*m * n.correction1) / ((*v * n.correction2).sqrt() + n.epsilon) + n.decay * *p;
        }
    }
}
