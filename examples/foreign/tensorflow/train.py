"""A line fitted by several workers with TensorFlow, which finds them in TF_CONFIG."""
import json
import os

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
truth = np.arange(8.0, dtype=np.float32).reshape(8, 1)
with strategy.scope():
    weights = tf.Variable(tf.zeros([8, 1]))


@tf.function
def train(inputs, outputs):
    def step(inputs, outputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((inputs @ weights - outputs) ** 2)
        change = tf.distribute.get_replica_context().all_reduce("MEAN", tape.gradient(loss, weights))
        weights.assign_sub(0.1 * change)
        return loss

    return strategy.reduce("MEAN", strategy.run(step, args=(inputs, outputs)), axis=None)


random = np.random.default_rng(rank)
for step in range(1, 101):
    inputs = random.standard_normal((32, 8), dtype=np.float32)
    loss = train(tf.constant(inputs), tf.constant(inputs @ truth))
    if rank == 0:
        print(f"step {step} loss {float(loss):.6f}")
